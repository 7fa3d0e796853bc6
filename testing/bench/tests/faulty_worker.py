"""A worker whose locks exclude no other client. It speaks the protocol, and a run has to detect it.

Usage: faulty_worker.py overlap|fence|silent|honest URL
"""

import json
import sys
import time

kind = sys.argv[1]
token = 0
held = {}
claims = {}


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def next_token():
    global token
    token += -1 if kind == "fence" else 1
    return str(token + 1000)


def claim(asked, acquired, let_go):
    return [asked, acquired, let_go, let_go, next_token()]


def execute(command, words):
    if command == "pairs":
        return {"start": now(), "end": now() + 1, "latency": [[1000, 1]], "fence_regressions": 0}
    if command == "ttl":
        return {}
    if command == "hold":
        at, fence = now(), next_token()
        held[words[0]] = (at, fence)
        return {"asked": at, "acquired": at, "token": fence}
    if command == "free":
        let_go = now()
        at, fence = held.pop(words[0])
        claims.setdefault(words[0], []).append([at, at, let_go, let_go, fence])
        return {"let_go": let_go, "freed": let_go}
    if command == "queue":
        name, waiters = words[0], int(words[1])
        at = now()
        for i in range(waiters):
            # Not before the holder releases the lock, unless the kind is overlap.
            begin = at + (0 if kind == "overlap" else 60_000_000_000) + 1000 * i
            claims.setdefault(name, []).append(claim(at, begin, begin + 10))
        return {}
    if command == "collect":
        collected = {name: list(entries) for name, entries in claims.items()}
        claims.clear()
        return {"claims": {} if kind == "silent" else collected}
    return {"error": "not here"}


print(json.dumps({"ready": 1}), flush=True)
for line in sys.stdin:
    command, *words = line.split()
    print(json.dumps(execute(command, words)), flush=True)
