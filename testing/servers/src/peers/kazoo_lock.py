"""Locks with kazoo's Lock as the lines on stdin say, and answers each with a line on stdout.

The first line names the hosts, the path, and the class if it is not Lock. Told nothing, it only loads the library.
"""

import sys

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout

first = sys.stdin.readline()
if first:
    hosts, path, *kind = first.split()
    client = KazooClient(hosts=hosts, timeout=10)
    client.start()
    lock = getattr(client, *kind or ["Lock"])(path, "kazoo")
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
