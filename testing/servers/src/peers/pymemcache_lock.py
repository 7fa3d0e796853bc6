"""Locks with pymemcache's `add` as the lines on stdin say, and answers each with a line on stdout.

Started with the port of the server and the name of the lock; ends with its stdin. Without arguments it
only loads the library.
"""

import sys
import uuid

from pymemcache.client.base import Client

if len(sys.argv) == 1:
    sys.exit()
port, name = sys.argv[1:]
client = Client(("127.0.0.1", int(port)))
token = None


def acquire(lease):
    """Without a lease there is no end."""
    global token
    token = uuid.uuid4().hex
    return "held" if client.add(name, token, expire=int(lease), noreply=False) else "contended"


def release():
    """The careful way: by CAS, and not by delete."""
    value, cas = client.gets(name)
    if value is None or value.decode() != token:
        return "not owned"
    return "done" if client.cas(name, "", cas, expire=-1, noreply=False) else "not owned"


def careless_release():
    """As most libraries do it: get, compare, delete."""
    if client.get(name) != token.encode():
        return "not owned"
    return "done" if client.delete(name, noreply=False) else "not owned"


def extend(lease):
    return "done" if client.touch(name, int(lease), noreply=False) else "not owned"


verbs = {"try": acquire, "release": release, "careless-release": careless_release, "touch": extend}

for line in sys.stdin:
    verb, *args = line.split()
    print(verbs[verb](*args), flush=True)
