"""Locks with kazoo's Lock as the lines on stdin say, and answers each with a line on stdout.

The first line names the hosts, the path, the class if it is not Lock, and then the session timeout in milliseconds if
it is not 10 s. After `watch`, each state of the connection is a line, too. Told nothing, it only loads the library.
"""

import sys

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout

first = sys.stdin.readline()
if first:
    hosts, path, kind, timeout, *_ = first.split() + ["Lock", "10000"][len(first.split()) - 2:]
    client = KazooClient(hosts=hosts, timeout=float(timeout) / 1000)
    client.start()
    lock = getattr(client, kind)(path, "kazoo")
    for line in sys.stdin:
        verb, *args = line.split()
        if verb == "acquire":
            try:
                answer = "held" if lock.acquire(timeout=float(args[0]) / 1000) else "contended"
            except LockTimeout:
                answer = "contended"
        elif verb == "watch":
            client.add_listener(lambda state: print(state, flush=True))
            answer = "done"
        else:
            lock.release()
            answer = "done"
        print(answer, flush=True)
    client.stop()
