"""The worker protocol, for any lock library of Python: PROTOCOL.md lists the commands.

A library is a class with `lock(name, ttl_ms)`, which creates the lock object of one client,
`acquire(lock)`, which waits, and `release(lock)`. For the fleet it has `try_acquire(lock)` and
`extend(lock, ttl_ms)`, which return whether they succeeded. Without a URL, the worker prints the
version of the library.
"""

import json
import sys
import threading
import time


class Cannot(Exception):
    """The library does not support the command."""


class Library:
    # Why a lock ends although its holder lives and does not release it, if it does.
    cannot_keep = None

    def keep(self, name, ttl_ms):
        """Returns a lock that is renewed until it is released."""
        if self.cannot_keep:
            raise Cannot(self.cannot_keep)
        lock = self.lock(name, ttl_ms)
        self.acquire(lock)
        return lock

    def try_acquire(self, lock):
        raise Cannot("this worker cannot try")

    def extend(self, lock, ttl_ms):
        raise Cannot("the library has no such call")

    # A function that returns whether a lock is still held, if the library knows.
    is_held = None

    # A function that returns whether a lock from `keep` is still held, if the library knows.
    is_kept = None


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def reach(moment):
    while (left := moment - now()) > 0:
        time.sleep(left / 1e9)


def in_threads(work, tasks):
    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(tasks)]
    for thread in threads:
        thread.start()
    return threads


class Worker:
    def __init__(self, library):
        self.library = library
        self.ttl_ms = 30_000
        self.held = {}
        self.claims = {}
        self.kept = []
        self.waiters = []
        self.errors = []

    def ttl(self, ms):
        self.ttl_ms = int(ms)
        return {}

    def hold(self, name):
        lock = self.library.lock(name, self.ttl_ms)
        asked = now()
        self.library.acquire(lock)
        acquired = now()
        self.held[name] = lock, asked, acquired
        return {"asked": asked, "acquired": acquired, "token": None}

    def free(self, name):
        return self.release(name, *self.held.pop(name))

    def release(self, name, lock, asked, acquired):
        let_go = now()
        self.library.release(lock)
        freed = now()
        self.claims.setdefault(name, []).append([asked, acquired, let_go, freed, None])
        return {"let_go": let_go, "freed": freed}

    def try_hold(self, name):
        lock = self.library.lock(name, self.ttl_ms)
        asked = now()
        held = self.library.try_acquire(lock)
        acquired = now()
        if held:
            self.held[name] = lock, asked, acquired
        return {"held": held, "asked": asked, "acquired": acquired}

    def extend(self, name, ms):
        return {"extended": self.library.extend(self.held[name][0], int(ms))}

    def is_held(self, name):
        knows = self.library.is_held
        return {"held": knows(self.held[name][0]) if knows else None}

    def count(self, name, ms, hold_us, pause_us, file):
        """The read and the write are two steps, so that an overlap of two holders loses an update."""
        end, grants = now() + int(ms) * 1_000_000, []
        while now() < end:
            lock = self.library.lock(name, self.ttl_ms)
            self.library.acquire(lock)
            acquired = now()
            with open(file) as counter:
                seen = int(counter.read())
            time.sleep(int(hold_us) / 1e6)
            with open(file, "w") as counter:
                counter.write(str(seen + 1))
            let_go = now()
            self.library.release(lock)
            grants.append([acquired, let_go])
            time.sleep(int(pause_us) / 1e6)
        return {"grants": grants}

    def pairs(self, prefix, tasks, count, ms, rate):
        tasks, count, ms, rate = int(tasks), int(count), int(ms), int(rate)
        latency = []
        start = now()
        end = start + ms * 1_000_000 if ms else sys.maxsize

        def task(i):
            lock = self.library.lock(f"{prefix}-{i}", self.ttl_ms)
            begun, done = now(), 0
            while not count or done < count:
                if rate:
                    begun = start + (done * tasks + i) * 1_000_000_000 // rate
                    if begun >= end:
                        return
                    reach(begun)
                self.library.acquire(lock)
                self.library.release(lock)
                ended = now()
                latency.append([ended - begun, 1])
                begun, done = ended, done + 1
                if not rate and ended >= end:
                    return

        for thread in in_threads(self.watched(task), tasks):
            thread.join()
        self.raise_what_threads_raised()
        return {"start": start, "end": now(), "latency": latency, "fence_regressions": 0}

    def queue(self, name, count, hold_us, times):
        begun = threading.Semaphore(0)

        def waiter(_):
            lock = self.library.lock(name, self.ttl_ms)
            begun.release()
            for _ in range(int(times)):
                asked = now()
                self.library.acquire(lock)
                acquired = now()
                if int(hold_us):
                    reach(acquired + int(hold_us) * 1000)
                self.release(name, lock, asked, acquired)

        self.waiters.extend(in_threads(self.watched(waiter), int(count)))
        for _ in range(int(count)):
            begun.acquire()
        return {}

    def collect(self):
        while self.waiters:
            self.waiters.pop().join()
        self.raise_what_threads_raised()
        collected = dict(self.claims)
        self.claims.clear()
        return {"claims": collected}

    def keep(self, prefix, count):
        for i in range(int(count)):
            self.kept.append(self.library.keep(f"{prefix}-{i}", self.ttl_ms))
        return self.state_of_kept()

    def state_of_kept(self):
        if self.library.is_kept is None:
            return {"held": None, "lost": None, "least_left_ms": None}
        held = sum(map(self.library.is_kept, self.kept))
        return {"held": held, "lost": len(self.kept) - held, "least_left_ms": None}

    def drop(self):
        while self.kept:
            self.library.release(self.kept.pop())
        return {}

    def watched(self, work):
        """Reports an error of a thread in the next answer that depends on it."""

        def watching(i):
            try:
                work(i)
            except Exception as error:
                self.errors.append(error)

        return watching

    def raise_what_threads_raised(self):
        if self.errors:
            raise self.errors.pop()


def serve(make, version):
    """Creates the library with `make(url, options)`, with options such as `sleep=0.01`, and serves it."""
    if not sys.argv[1:] or ":" not in sys.argv[-1]:
        print(version)
        return
    options = dict(word.split("=", 1) for word in sys.argv[1:-1])
    worker = Worker(make(sys.argv[-1], options))
    commands = {
        command.__name__: command
        for command in [
            worker.ttl,
            worker.pairs,
            worker.hold,
            worker.free,
            worker.queue,
            worker.collect,
            worker.keep,
            worker.drop,
            worker.extend,
            worker.count,
        ]
    } | {"kept": worker.state_of_kept, "try": worker.try_hold, "held": worker.is_held}
    print(json.dumps({"ready": 1}), flush=True)
    for line in sys.stdin:
        command, *words = line.split()
        try:
            answer = commands[command](*words)
        except Cannot as why:
            answer = {"cannot": str(why)}
        except Exception as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)
