"""A worker that locks with python-redis-lock."""

import threading

import redis_client
import redis_lock
import worker

# Each lock that is renewed has a thread.
THREADS = 2000


class PythonRedisLock(worker.Library):
    def __init__(self, url, _options):
        self.client = redis_client.connect(url)
        self.renewed = 0

    def lock(self, name, ttl_ms):
        return redis_lock.Lock(self.client, name, expire=max(1, ttl_ms // 1000))

    def acquire(self, lock):
        lock.acquire()

    def try_acquire(self, lock):
        return lock.acquire(blocking=False)

    def extend(self, lock, ttl_ms):
        lock.extend(max(1, ttl_ms // 1000))
        return True

    # It asks the server.
    def is_held(self, lock):
        return lock._held

    def release(self, lock):
        lock.release()

    def keep(self, name, ttl_ms):
        self.renewed += 1
        if self.renewed > THREADS:
            raise worker.Cannot(f"each lock has a thread; more than {THREADS} are too many")
        lock = redis_lock.Lock(self.client, name, expire=ttl_ms // 1000, auto_renewal=True)
        lock.acquire()
        return lock

    def is_kept(self, lock):
        # The library does not report a loss, but the thread ends when it cannot renew.
        return lock._lock_renewal_thread is not None and lock._lock_renewal_thread.is_alive()


# No page of output for each lost lock: `is_kept` reports it.
threading.excepthook = lambda _: None

worker.serve(PythonRedisLock, redis_lock.__version__)
