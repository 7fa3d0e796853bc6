"""A worker that locks with redis-py's Lock. Options: `sleep=SECONDS` between two polls, 0.1 by default; `defaults=1`
for a client and locks with all defaults: the client repeats failed requests, and the locks do not expire.
"""

import urllib.parse

import redis
import redis_client
import worker


class RedisPy(worker.Library):
    cannot_keep = "it renews nothing by itself"

    def __init__(self, url, options):
        self.by_default = options.pop("defaults", None)
        self.options = {key: float(value) for key, value in options.items()}
        if self.by_default:
            address = urllib.parse.urlsplit(url)
            self.client = redis.Redis(host=address.hostname, port=address.port)
        else:
            self.client = redis_client.connect(url)

    def lock(self, name, ttl_ms):
        if self.by_default:
            return self.client.lock(name)
        return self.client.lock(name, timeout=ttl_ms / 1000, **self.options)

    def acquire(self, lock):
        lock.acquire()

    def try_acquire(self, lock):
        return lock.acquire(blocking=False)

    def extend(self, lock, ttl_ms):
        return lock.extend(ttl_ms / 1000, replace_ttl=True)

    # It asks the server.
    def is_held(self, lock):
        return lock.owned()

    def release(self, lock):
        lock.release()


worker.serve(RedisPy, redis.__version__)
