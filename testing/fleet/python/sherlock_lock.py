"""A worker that locks with Sherlock, on Redis or memcached. Options: `retry_interval=SECONDS` between two polls, 0.1
by default; `endless=1` for locks that do not expire.
"""

import importlib.metadata
import threading

import sherlock
import worker


class Sherlock(worker.Library):
    cannot_keep = "it renews nothing by itself"

    def __init__(self, url, options):
        self.endless = options.pop("endless", None)
        self.options = {key: float(value) for key, value in options.items()}
        scheme, _, address = url.partition("://")
        if scheme == "redis":
            import redis_client

            client = redis_client.connect(url)
            self.new, self.client = sherlock.RedisLock, lambda: client
        else:
            import pylibmc

            # Its clients are for one thread each.
            client, own = pylibmc.Client([address], binary=True), threading.local()
            client.get("are-you-there")

            def client_of_thread():
                own.client = getattr(own, "client", None) or client.clone()
                return own.client

            self.new, self.client = sherlock.MCLock, client_of_thread

    def lock(self, name, ttl_ms):
        # By default a waiter gives up after 10 s; here it waits until it is served.
        expire = None if self.endless else max(1, ttl_ms // 1000)
        return self.new(name, client=self.client(), expire=expire, timeout=1e9, **self.options)

    def acquire(self, lock):
        lock.acquire()

    def try_acquire(self, lock):
        return lock.acquire(blocking=False)

    def extend(self, lock, _ttl_ms):
        return lock.renew()

    def release(self, lock):
        lock.release()


worker.serve(Sherlock, importlib.metadata.version("sherlock"))
