// A worker that locks with Spring Integration's RedisLockRegistry or with Redisson: testing/bench/PROTOCOL.md has its
// commands.
//
// Usage: Worker CLIENT [OPTION...] URL. Without a URL it prints the version of the client. Each lock belongs to the
// thread that acquired it, so all commands run in one, and each task of `pairs` and `queue` in one of its own.
// Redisson's watchdog renews the locks of `keep`, and no others; the option `watchdog=MS` is their lease, 30 s by
// default.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.StringJoiner;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import java.util.concurrent.locks.LockSupport;
import java.util.regex.Pattern;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;
import org.springframework.data.redis.connection.lettuce.LettuceConnectionFactory;
import org.springframework.integration.redis.util.RedisLockRegistry;

public final class Worker {
    /** A library. `lock` returns the lock of a name, before it is acquired. */
    interface Library {
        Lock lock(String name, long ttlMs);

        /** Waits until the lock is acquired. */
        default void acquire(Lock lock, long ttlMs) throws Exception {
            lock.lock();
        }

        default boolean tryAcquire(Lock lock, long ttlMs) throws Exception {
            return lock.tryLock();
        }

        /** Renews the lock once, or throws Cannot. */
        void extend(Lock lock, String name, long ttlMs) throws Exception;

        /** Waits until the lock is acquired, and renews it until it is released; or throws Cannot. */
        default Lock keep(String name) throws Cannot {
            throw new Cannot("it renews nothing by itself here");
        }

        /** Null if the library does not tell. */
        Boolean isHeld(Lock lock);
    }

    static final class Cannot extends Exception {
        Cannot(String why) {
            super(why);
        }
    }

    private static final String PREFIX = "fleet";

    /** A lock that was acquired, and when. */
    private record Hold(Lock lock, long asked, long acquired) {}

    private final Library library;
    private final Map<String, Hold> held = new HashMap<>();
    private final List<Lock> kept = new ArrayList<>();
    private final Map<String, List<String>> claims = new ConcurrentHashMap<>();
    private final ExecutorService threads = Executors.newCachedThreadPool();
    private final List<Future<?>> waiters = new ArrayList<>();
    private volatile long ttlMs = 30_000;

    private Worker(Library library) {
        this.library = library;
    }

    public static void main(String[] words) throws Exception {
        String client = words[0];
        Class<?> named = client.equals("redisson") ? Redisson.class : RedisLockRegistry.class;
        if (words.length == 1) {
            System.out.println(version(named));
            return;
        }
        URI url = new URI(words[words.length - 1]);
        Map<String, Long> options = new HashMap<>();
        for (int i = 1; i < words.length - 1; i++) {
            String[] pair = words[i].split("=");
            options.put(pair[0], Long.parseLong(pair[1]));
        }
        Library library = switch (client) {
            case "spring" -> new Spring(url, RedisLockRegistry.RedisLockType.SPIN_LOCK);
            case "spring-pubsub" -> new Spring(url, RedisLockRegistry.RedisLockType.PUB_SUB_LOCK);
            case "redisson" -> new OfRedisson(url, options);
            default -> throw new IllegalArgumentException("no client " + client);
        };
        new Worker(library).serve();
        System.exit(0);
    }

    /** The version is part of the jar's name. */
    private static String version(Class<?> named) {
        String jar = named.getProtectionDomain().getCodeSource().getLocation().getPath();
        var found = Pattern.compile("-([0-9][^/]*)\\.jar$").matcher(jar);
        return found.find() ? found.group(1) : "unknown";
    }

    private void serve() throws Exception {
        System.out.println("{\"ready\":1}");
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String answer;
            try {
                answer = execute(line.split(" "));
            } catch (Cannot why) {
                answer = "{\"cannot\":" + quoted(why.getMessage()) + "}";
            } catch (Throwable error) {
                answer = "{\"error\":" + quoted(error.toString()) + "}";
            }
            System.out.println(answer);
        }
    }

    private static String quoted(String text) {
        String one = text == null ? "" : text.replaceAll("[\\x00-\\x1f]+", " ");
        return '"' + one.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }

    private String execute(String[] words) throws Exception {
        String name = words.length > 1 ? words[1] : "";
        switch (words[0]) {
            case "ttl":
                ttlMs = Long.parseLong(name);
                return "{}";
            case "pairs":
                return pairs(name, numbers(words, 4));
            case "hold": {
                Hold hold = acquire(name);
                held.put(name, hold);
                return "{\"asked\":" + hold.asked + ",\"acquired\":" + hold.acquired + ",\"token\":null}";
            }
            case "try": {
                long asked = System.nanoTime();
                Lock lock = library.lock(name, ttlMs);
                boolean is = library.tryAcquire(lock, ttlMs);
                long acquired = System.nanoTime();
                if (is) {
                    held.put(name, new Hold(lock, asked, acquired));
                }
                return "{\"held\":" + is + ",\"asked\":" + asked + ",\"acquired\":" + acquired + "}";
            }
            case "free":
                return free(name, held.get(name));
            case "queue":
                return queue(name, numbers(words, 3));
            case "collect":
                return collect();
            case "extend":
                library.extend(held.get(name).lock, name, Long.parseLong(words[2]));
                return "{\"extended\":true}";
            case "held":
                return "{\"held\":" + library.isHeld(held.get(name).lock) + "}";
            case "keep":
                for (int i = 0; i < Integer.parseInt(words[2]); i++) {
                    kept.add(library.keep(name + "-" + i));
                }
                return stateOfKept();
            case "kept":
                return stateOfKept();
            case "drop":
                while (!kept.isEmpty()) {
                    kept.remove(kept.size() - 1).unlock();
                }
                return "{}";
            case "count":
                return count(name, numbers(words, 3), Path.of(words[5]));
            default:
                throw new IllegalArgumentException("not a command: " + words[0]);
        }
    }

    private String stateOfKept() {
        long are = kept.stream().filter(library::isHeld).count();
        return "{\"held\":" + are + ",\"lost\":" + (kept.size() - are) + ",\"least_left_ms\":null}";
    }

    /** The numbers behind the name. */
    private static long[] numbers(String[] words, int count) {
        return Arrays.stream(words, 2, 2 + count).mapToLong(Long::parseLong).toArray();
    }

    private Hold acquire(String name) throws Exception {
        long asked = System.nanoTime();
        Lock lock = library.lock(name, ttlMs);
        library.acquire(lock, ttlMs);
        return new Hold(lock, asked, System.nanoTime());
    }

    private String free(String name, Hold hold) {
        long letGo = System.nanoTime();
        hold.lock.unlock();
        long freed = System.nanoTime();
        String claim = "[" + hold.asked + "," + hold.acquired + "," + letGo + "," + freed + ",null]";
        claims.computeIfAbsent(name, any -> Collections.synchronizedList(new ArrayList<>())).add(claim);
        return "{\"let_go\":" + letGo + ",\"freed\":" + freed + "}";
    }

    private static void reach(long moment) {
        for (long left = moment - System.nanoTime(); left > 0; left = moment - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }

    private String pairs(String prefix, long[] numbers) throws Exception {
        int tasks = (int) numbers[0];
        List<Future<List<Long>>> running = new ArrayList<>();
        long start = System.nanoTime();
        for (int i = 0; i < tasks; i++) {
            int task = i;
            running.add(threads.submit(() -> pairsOf(prefix + "-" + task, task, numbers, start)));
        }
        List<List<Long>> latency = new ArrayList<>();
        for (Future<List<Long>> task : running) {
            latency.add(task.get());
        }
        long end = System.nanoTime();
        var each = new StringJoiner(",", "[", "]");
        latency.forEach(list -> list.forEach(nanos -> each.add("[" + nanos + ",1]")));
        return "{\"start\":" + start + ",\"end\":" + end + ",\"latency\":" + each + ",\"fence_regressions\":0}";
    }

    /** The latencies of one task. */
    private List<Long> pairsOf(String name, int task, long[] numbers, long start) throws Exception {
        long tasks = numbers[0], count = numbers[1], rate = numbers[3];
        long end = numbers[2] == 0 ? Long.MAX_VALUE : start + TimeUnit.MILLISECONDS.toNanos(numbers[2]);
        List<Long> latency = new ArrayList<>();
        long begun = System.nanoTime();
        for (long done = 0; count == 0 || done < count; done++) {
            if (rate != 0) {
                begun = start + (done * tasks + task) * 1_000_000_000 / rate;
                if (begun >= end) {
                    break;
                }
                reach(begun);
            }
            acquire(name).lock.unlock();
            long ended = System.nanoTime();
            latency.add(ended - begun);
            begun = ended;
            if (rate == 0 && ended >= end) {
                break;
            }
        }
        return latency;
    }

    private String queue(String name, long[] numbers) throws Exception {
        int count = (int) numbers[0];
        var begun = new CountDownLatch(count);
        for (int i = 0; i < count; i++) {
            waiters.add(threads.submit(() -> {
                begun.countDown();
                for (long done = 0; done < numbers[2]; done++) {
                    Hold hold = acquire(name);
                    reach(hold.acquired + TimeUnit.MICROSECONDS.toNanos(numbers[1]));
                    free(name, hold);
                }
                return null;
            }));
        }
        begun.await();
        return "{}";
    }

    private String collect() throws Exception {
        for (Future<?> waiter : waiters) {
            waiter.get();
        }
        waiters.clear();
        var all = new StringJoiner(",", "{", "}");
        claims.forEach((name, list) -> all.add(quoted(name) + ":[" + String.join(",", list) + "]"));
        claims.clear();
        return "{\"claims\":" + all + "}";
    }

    /** The read and the write are two steps, so that an overlap of two holders loses an update. */
    private String count(String name, long[] numbers, Path file) throws Exception {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(numbers[0]);
        List<String> grants = new ArrayList<>();
        while (System.nanoTime() < end) {
            Lock lock = library.lock(name, ttlMs);
            library.acquire(lock, ttlMs);
            long acquired = System.nanoTime();
            int seen = Integer.parseInt(Files.readString(file));
            TimeUnit.MICROSECONDS.sleep(numbers[1]);
            Files.writeString(file, Integer.toString(seen + 1));
            long letGo = System.nanoTime();
            lock.unlock();
            grants.add("[" + acquired + "," + letGo + "]");
            TimeUnit.MICROSECONDS.sleep(numbers[2]);
        }
        return "{\"grants\":[" + String.join(",", grants) + "]}";
    }

    /** Spring Integration. The lease is one of the whole registry. */
    private static final class Spring implements Library {
        private final LettuceConnectionFactory connections;
        private final RedisLockRegistry.RedisLockType type;
        private final Map<Long, RedisLockRegistry> registries = new ConcurrentHashMap<>();
        private final Map<Lock, RedisLockRegistry> origins = Collections.synchronizedMap(new IdentityHashMap<>());

        Spring(URI url, RedisLockRegistry.RedisLockType type) {
            connections = new LettuceConnectionFactory(url.getHost(), url.getPort());
            connections.afterPropertiesSet();
            connections.start();
            connections.getConnection().ping();
            this.type = type;
        }

        @Override
        public Lock lock(String name, long ttlMs) {
            RedisLockRegistry registry = registries.computeIfAbsent(ttlMs, this::registry);
            Lock lock = registry.obtain(name);
            origins.put(lock, registry);
            return lock;
        }

        private RedisLockRegistry registry(long ttlMs) {
            var registry = new RedisLockRegistry(connections, PREFIX, ttlMs);
            registry.setRedisLockType(type);
            return registry;
        }

        @Override
        public void extend(Lock lock, String name, long ttlMs) {
            origins.get(lock).renewLock(name);
        }

        @Override
        public Boolean isHeld(Lock lock) {
            return null;
        }
    }

    /** Redisson's RLock, with explicit leases, except those of `keep`. */
    private static final class OfRedisson implements Library {
        private final RedissonClient client;

        OfRedisson(URI url, Map<String, Long> options) {
            var config = new Config();
            config.setLockWatchdogTimeout(options.getOrDefault("watchdog", config.getLockWatchdogTimeout()));
            config.useSingleServer().setAddress(url.toString()).setConnectionMinimumIdleSize(2);
            client = Redisson.create(config);
        }

        @Override
        public Lock lock(String name, long ttlMs) {
            return client.getLock(name);
        }

        @Override
        public void acquire(Lock lock, long ttlMs) {
            ((RLock) lock).lock(ttlMs, TimeUnit.MILLISECONDS);
        }

        @Override
        public boolean tryAcquire(Lock lock, long ttlMs) throws InterruptedException {
            return ((RLock) lock).tryLock(0, ttlMs, TimeUnit.MILLISECONDS);
        }

        @Override
        public Lock keep(String name) {
            RLock lock = client.getLock(name);
            lock.lock();
            return lock;
        }

        @Override
        public void extend(Lock lock, String name, long ttlMs) throws Cannot {
            throw new Cannot("its watchdog alone extends");
        }

        @Override
        public Boolean isHeld(Lock lock) {
            return ((RLock) lock).isHeldByCurrentThread();
        }
    }
}
