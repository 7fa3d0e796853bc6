"""A worker that locks with kazoo's Lock, as PROTOCOL.md says.

usage: kazoo_worker.py zookeeper://HOST:PORT[?session_timeout=24s]

Told nothing, it says which version of the library there is.
"""

import json
import sys
import threading
import time

import kazoo.version
from kazoo.client import KazooClient

client = None
held = {}
claims = {}
kept = []
waiters = []


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def reach(moment):
    while (left := moment - now()) > 0:
        time.sleep(left / 1e9)


def lock_of(name):
    # Each waiter has a lock of its own: kazoo's are for one contender.
    return client.Lock("/" + name, "worker")


def acquire(lock):
    asked = now()
    lock.acquire()
    return asked, now()


def release(name, lock, asked, acquired):
    let_go = now()
    lock.release()
    freed = now()
    claims.setdefault(name, []).append([asked, acquired, let_go, freed, None])
    return {"let_go": let_go, "freed": freed}


def in_threads(work, tasks):
    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(tasks)]
    for thread in threads:
        thread.start()
    return threads


def pairs(prefix, tasks, count, ms, rate):
    latency = []
    start = now()
    end = start + ms * 1_000_000 if ms else sys.maxsize

    def task(i):
        lock, begun, done = lock_of(f"{prefix}-{i}"), now(), 0
        while not count or done < count:
            if rate:
                begun = start + (done * tasks + i) * 1_000_000_000 // rate
                if begun >= end:
                    return
                reach(begun)
            lock.acquire()
            lock.release()
            ended = now()
            latency.append([ended - begun, 1])
            begun, done = ended, done + 1
            if not rate and ended >= end:
                return

    for thread in in_threads(task, tasks):
        thread.join()
    return {"start": start, "end": now(), "latency": latency, "fence_regressions": 0}


def queue(name, count, hold_us, times):
    begun = threading.Semaphore(0)

    def waiter(_):
        lock = lock_of(name)
        begun.release()
        for _ in range(times):
            asked, acquired = acquire(lock)
            if hold_us:
                reach(acquired + hold_us * 1000)
            release(name, lock, asked, acquired)

    waiters.extend(in_threads(waiter, count))
    for _ in range(count):
        begun.acquire()
    return {}


def state_of_kept():
    return {"held": len(kept), "lost": 0, "least_left_ms": None}


def execute(command, *words):
    if command == "ttl":
        return {}
    if command == "pairs":
        return pairs(words[0], *map(int, words[1:]))
    if command == "hold":
        lock = lock_of(words[0])
        asked, acquired = acquire(lock)
        held[words[0]] = lock, asked, acquired
        return {"asked": asked, "acquired": acquired, "token": None}
    if command == "free":
        return release(words[0], *held.pop(words[0]))
    if command == "queue":
        return queue(words[0], *map(int, words[1:]))
    if command == "collect":
        while waiters:
            waiters.pop().join()
        collected = dict(claims)
        claims.clear()
        return {"claims": collected}
    if command == "keep":
        for i in range(int(words[1])):
            kept.append(lock_of(f"{words[0]}-{i}"))
            kept[-1].acquire()
        return state_of_kept()
    if command == "kept":
        return state_of_kept()
    if command == "drop":
        while kept:
            kept.pop().release()
        return {}
    return {"error": f"not a command: {command}"}


def main(url):
    global client
    address, _, options = url.removeprefix("zookeeper://").partition("?")
    timeout = float(options.removeprefix("session_timeout=").removesuffix("s") or 10)
    client = KazooClient(hosts=address, timeout=timeout)
    client.start()
    print(json.dumps({"ready": 1}), flush=True)
    for line in sys.stdin:
        try:
            answer = execute(*line.split())
        except Exception as error:
            answer = {"error": repr(error)}
        print(json.dumps(answer), flush=True)


if len(sys.argv) > 1:
    main(sys.argv[1])
else:
    print(kazoo.version.__version__)
