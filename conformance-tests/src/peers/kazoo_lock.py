"""Locks with kazoo's Lock as the lines on stdin say, and answers each with a line on stdout.

Told nothing, it only loads the library.
"""

import sys

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout

first = sys.stdin.readline()
if first:
    hosts, path = first.split()
    client = KazooClient(hosts=hosts, timeout=10)
    client.start()
    lock = client.Lock(path, "kazoo")
    for line in sys.stdin:
        verb, *args = line.split()
        if verb == "acquire":
            try:
                answer = "held" if lock.acquire(timeout=float(args[0]) / 1000) else "contended"
            except LockTimeout:
                answer = "contended"
        else:
            lock.release()
            answer = "done"
        print(answer, flush=True)
    client.stop()
