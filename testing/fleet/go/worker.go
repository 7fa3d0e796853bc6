// A worker that locks with redsync, bsm/redislock or rueidislock: testing/bench/PROTOCOL.md has its commands.
//
// Usage: fleet CLIENT [OPTION...] URL. Without a URL it prints the version of the client.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A library locks with one client. `try` returns nil if the lock is not free.
type library interface {
	acquire(name string, ttl time.Duration) (held, error)
	try(name string, ttl time.Duration) (held, error)
}

// A held is a lock that was acquired.
type held interface {
	release() error
	// errCannot if the library has no such call.
	extend(ttl time.Duration) (bool, error)
	// nil if the library does not tell.
	isHeld() (*bool, error)
}

// A stoppable library ends a wait that lasts until `end`, and returns nil.
type stoppable interface {
	acquireUntil(name string, ttl time.Duration, end time.Time) (held, error)
}

var errCannot = errors.New("the library has no such call")

type client struct {
	module string
	// Why it cannot renew by itself; empty if it does.
	cannotKeep string
	connect    func(urls []string, options map[string]int) (library, error)
}

var clients = map[string]client{
	"redsync":     {"github.com/go-redsync/redsync/v4", "it renews nothing by itself", newRedsync},
	"redislock":   {"github.com/bsm/redislock", "it renews nothing by itself", newRedislock},
	"rueidislock": {"github.com/redis/rueidis", "", newRueidislock},
}

type answer = map[string]any

type worker struct {
	library    library
	cannotKeep string
	ttl        time.Duration
	held       map[string]hold
	kept       []held
	waiters    tasks
	// Of locks that were held and freed, by name.
	claims map[string][]claim
	mutex  sync.Mutex
}

// A hold is a lock that was acquired, and when.
type hold struct {
	held
	asked, acquired int64
}

// A claim is when a lock was asked for, acquired, let go and freed, and no token.
type claim [5]any

// The tasks of a command.
type tasks struct {
	sync.WaitGroup
	failure atomic.Pointer[error]
}

func (t *tasks) start(count int, task func(i int) error) {
	for i := range count {
		t.Go(func() {
			if err := task(i); err != nil {
				t.failure.Store(&err)
			}
		})
	}
}

func (t *tasks) wait() error {
	t.Wait()
	if err := t.failure.Swap(nil); err != nil {
		return *err
	}
	return nil
}

func main() {
	name, words := os.Args[1], os.Args[2:]
	client, ok := clients[name]
	if !ok {
		fail(fmt.Errorf("no client %q", name))
	}
	if len(words) == 0 || !strings.Contains(words[len(words)-1], ":") {
		fmt.Println(version(client.module))
		return
	}
	options := map[string]int{}
	for _, word := range words[:len(words)-1] {
		key, value, _ := strings.Cut(word, "=")
		number, err := strconv.Atoi(value)
		fail(err)
		options[key] = number
	}
	library, err := client.connect(members(words[len(words)-1]), options)
	fail(err)
	w := worker{
		library: library, cannotKeep: client.cannotKeep, ttl: 30 * time.Second,
		held: map[string]hold{}, claims: map[string][]claim{},
	}
	w.serve()
}

// members returns the servers of a URL: one, or those of `quorum:?member=redis://a&member=redis://b`.
func members(url string) []string {
	list, isQuorum := strings.CutPrefix(url, "quorum:?")
	if !isQuorum {
		return []string{url}
	}
	var urls []string
	for _, pair := range strings.Split(list, "&") {
		if member, ok := strings.CutPrefix(pair, "member="); ok {
			urls = append(urls, member)
		}
	}
	return urls
}

func version(module string) string {
	info, _ := debug.ReadBuildInfo()
	for _, one := range info.Deps {
		if one.Path == module {
			return strings.TrimPrefix(one.Version, "v")
		}
	}
	return "unknown"
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

func now() int64 {
	var time unix.Timespec
	fail(unix.ClockGettime(unix.CLOCK_MONOTONIC, &time))
	return time.Nano()
}

func reach(moment int64) { time.Sleep(time.Duration(moment - now())) }

func (w *worker) serve() {
	say(answer{"ready": 1})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Split(lines.Text(), " ")
		said, err := w.execute(words[0], append(words[1:], "", "", "", "", ""))
		switch {
		case errors.Is(err, errCannot):
			said = answer{"cannot": err.Error()}
		case err != nil:
			said = answer{"error": err.Error()}
		}
		say(said)
	}
}

func say(said answer) {
	line, err := json.Marshal(said)
	fail(err)
	fmt.Println(string(line))
}

func (w *worker) execute(command string, words []string) (answer, error) {
	name, number := words[0], func(i int) time.Duration {
		value, _ := strconv.Atoi(words[i])
		return time.Duration(value)
	}
	switch command {
	case "ttl":
		w.ttl = number(0) * time.Millisecond
		return answer{}, nil
	case "pairs":
		return w.pairs(name, int(number(1)), int(number(2)), number(3)*time.Millisecond, int64(number(4)))
	case "hold":
		one, err := w.acquire(name)
		if err != nil {
			return nil, err
		}
		w.held[name] = one
		return answer{"asked": one.asked, "acquired": one.acquired, "token": nil}, nil
	case "try":
		asked := now()
		one, err := w.library.try(name, w.ttl)
		if err != nil {
			return nil, err
		}
		acquired := now()
		if one != nil {
			w.held[name] = hold{one, asked, acquired}
		}
		return answer{"held": one != nil, "asked": asked, "acquired": acquired}, nil
	case "free":
		return w.free(name, w.held[name])
	case "queue":
		return w.queue(name, int(number(1)), number(2)*time.Microsecond, int(number(3)))
	case "collect":
		err := w.waiters.wait()
		collected := w.claims
		w.claims = map[string][]claim{}
		return answer{"claims": collected}, err
	case "extend":
		extended, err := w.held[name].extend(number(1) * time.Millisecond)
		return answer{"extended": extended}, err
	case "held":
		is, err := w.held[name].isHeld()
		return answer{"held": is}, err
	case "keep":
		if w.cannotKeep != "" {
			return answer{"cannot": w.cannotKeep}, nil
		}
		for i := 0; i < int(number(1)); i++ {
			one, err := w.library.acquire(fmt.Sprintf("%s-%d", name, i), w.ttl)
			if err != nil {
				return nil, err
			}
			w.kept = append(w.kept, one)
		}
		return w.stateOfKept()
	case "kept":
		return w.stateOfKept()
	case "drop":
		for _, one := range w.kept {
			if err := one.release(); err != nil {
				return nil, err
			}
		}
		w.kept = nil
		return answer{}, nil
	case "count":
		return w.count(name, number(1)*time.Millisecond, number(2)*time.Microsecond, number(3)*time.Microsecond, words[4])
	}
	return nil, fmt.Errorf("not a command: %s", command)
}

func (w *worker) acquire(name string) (hold, error) {
	asked := now()
	one, err := w.library.acquire(name, w.ttl)
	return hold{one, asked, now()}, err
}

func (w *worker) free(name string, one hold) (answer, error) {
	letGo := now()
	if err := one.release(); err != nil {
		return nil, err
	}
	freed := now()
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.claims[name] = append(w.claims[name], claim{one.asked, one.acquired, letGo, freed, nil})
	return answer{"let_go": letGo, "freed": freed}, nil
}

func (w *worker) pairs(prefix string, count, times int, lasts time.Duration, rate int64) (answer, error) {
	latency := make([][][2]int64, count)
	start, end := now(), int64(math.MaxInt64)
	if lasts != 0 {
		end = start + int64(lasts)
	}
	var running tasks
	running.start(count, func(i int) error {
		name, begun := fmt.Sprintf("%s-%d", prefix, i), now()
		for done := 0; times == 0 || done < times; done++ {
			if rate != 0 {
				begun = start + int64(done*count+i)*int64(time.Second)/rate
				if begun >= end {
					return nil
				}
				reach(begun)
			}
			one, err := w.library.acquire(name, w.ttl)
			if err != nil {
				return err
			}
			if err := one.release(); err != nil {
				return err
			}
			ended := now()
			latency[i] = append(latency[i], [2]int64{ended - begun, 1})
			begun = ended
			if rate == 0 && ended >= end {
				return nil
			}
		}
		return nil
	})
	err := running.wait()
	all := slices.Concat(latency...)
	return answer{"start": start, "end": now(), "latency": all, "fence_regressions": 0}, err
}

func (w *worker) queue(name string, count int, lasts time.Duration, times int) (answer, error) {
	var begun sync.WaitGroup
	begun.Add(count)
	w.waiters.start(count, func(int) error {
		begun.Done()
		for range times {
			one, err := w.acquire(name)
			if err != nil {
				return err
			}
			reach(one.acquired + int64(lasts))
			if _, err := w.free(name, one); err != nil {
				return err
			}
		}
		return nil
	})
	begun.Wait()
	return answer{}, nil
}

func (w *worker) stateOfKept() (answer, error) {
	are := 0
	for _, one := range w.kept {
		is, err := one.isHeld()
		if err != nil {
			return nil, err
		}
		if is == nil {
			return answer{"held": nil, "lost": nil, "least_left_ms": nil}, nil
		}
		if *is {
			are++
		}
	}
	return answer{"held": are, "lost": len(w.kept) - are, "least_left_ms": nil}, nil
}

func (w *worker) count(name string, lasts, hold, pause time.Duration, file string) (answer, error) {
	end := time.Now().Add(lasts)
	grants := [][2]int64{}
	for time.Now().Before(end) {
		one, err := w.acquireUntil(name, end.Add(patience))
		if err != nil {
			return nil, err
		}
		if one == nil {
			return answer{"grants": grants, "unserved_ms": patience.Milliseconds()}, nil
		}
		acquired := now()
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		seen, err := strconv.Atoi(string(text))
		if err != nil {
			return nil, err
		}
		time.Sleep(hold)
		if err := os.WriteFile(file, []byte(strconv.Itoa(seen+1)), 0o600); err != nil {
			return nil, err
		}
		letGo := now()
		if err := one.release(); err != nil {
			return nil, err
		}
		grants = append(grants, [2]int64{acquired, letGo})
		time.Sleep(pause)
	}
	return answer{"grants": grants}, nil
}

// patience is how long a waiter of `count` waits after the end of the run. The lock is free then.
const patience = 20 * time.Second

func (w *worker) acquireUntil(name string, end time.Time) (held, error) {
	if library, ok := w.library.(stoppable); ok {
		return library.acquireUntil(name, w.ttl, end)
	}
	return w.library.acquire(name, w.ttl)
}
