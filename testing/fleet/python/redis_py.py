"""A worker that locks with redis-py's Lock. Option: `sleep=SECONDS` between two polls, 0.1 by default."""

import redis
import redis_client
import worker


class RedisPy(worker.Library):
    cannot_keep = "it renews nothing by itself"

    def __init__(self, url, options):
        self.client = redis_client.connect(url)
        self.options = {key: float(value) for key, value in options.items()}

    def lock(self, name, ttl_ms):
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
