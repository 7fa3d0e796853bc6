"""Locks with redis-py as the lines on stdin say, and answers each with a line on stdout.

Started with the port of the server and the name of the lock; ends with its stdin. Without arguments it
only loads the library.
"""

import sys
import time

from redis import Redis
from redis.exceptions import LockError, LockNotOwnedError

if len(sys.argv) == 1:
    sys.exit()
port, name = sys.argv[1:]
client = Redis(host="127.0.0.1", port=int(port))
lock = None


def acquire(lease, **how):
    """A lease of 0 seconds is one without end, as it is by default."""
    global lock
    lock = client.lock(name, timeout=float(lease) or None)
    return "held" if lock.acquire(**how) else "contended"


def owned(verb, *args):
    try:
        verb(*args)
        return "done"
    except LockNotOwnedError:
        return "not owned"
    except LockError as error:
        return f"failed: {error}"


def count(rounds, lease, patience, pause):
    """Adds to a counter in two steps, each time under the lock, and pauses without it."""
    longest = 0.0
    for _ in range(int(rounds)):
        began = time.monotonic()
        one = client.lock(name, timeout=float(lease), blocking_timeout=float(patience))
        if not one.acquire():
            return f"gave up after {time.monotonic() - began:.1f} s"
        longest = max(longest, time.monotonic() - began)
        seen = int(client.get("counter") or 0)
        time.sleep(0.001)
        client.set("counter", seen + 1)
        client.rpush("served", "redis-py")
        one.release()
        time.sleep(float(pause))
    return f"waited {longest * 1000:.0f}"


verbs = {
    "try": lambda lease: acquire(lease, blocking=False),
    "acquire": lambda lease, patience: acquire(lease, blocking_timeout=float(patience)),
    "release": lambda: owned(lock.release),
    "extend": lambda seconds: owned(lock.extend, float(seconds)),
    "reacquire": lambda: owned(lock.reacquire),
    "count": count,
}

for line in sys.stdin:
    verb, *args = line.split()
    print(verbs[verb](*args), flush=True)
