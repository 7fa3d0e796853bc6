"""A worker that locks with aioredlock. Its locks have a `lock_timeout`, so that the program renews them."""

import asyncio
import importlib.metadata
import threading

import worker
from aioredlock import Aioredlock
from aioredlock.errors import LockAcquiringError


class Lock:
    def __init__(self, name, ttl_ms):
        self.name, self.seconds, self.held = name, ttl_ms / 1000, None


class OfAioredlock(worker.Library):
    cannot_keep = "with a `lock_timeout` it renews nothing by itself"

    def __init__(self, url, _options):
        # Its event loop runs in a thread.
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.run(self.connect(url))

    def run(self, task):
        return asyncio.run_coroutine_threadsafe(task, self.loop).result()

    async def connect(self, url):
        self.manager = Aioredlock([url])
        # By default a waiter gives up after 3 polls; here it waits until it is served.
        self.patient = Aioredlock([url], retry_count=10**9)
        for manager in [self.manager, self.patient]:
            await manager.is_locked("are-you-there")

    def lock(self, name, ttl_ms):
        return Lock(name, ttl_ms)

    def acquire(self, lock):
        lock.held = self.run(self.patient.lock(lock.name, lock_timeout=lock.seconds))

    def try_acquire(self, lock):
        try:
            lock.held = self.run(self.manager.lock(lock.name, lock_timeout=lock.seconds))
        except LockAcquiringError:
            return False
        return True

    def extend(self, lock, ttl_ms):
        self.run(self.manager.extend(lock.held, lock_timeout=ttl_ms / 1000))
        return True

    def is_held(self, lock):
        return lock.held.valid

    def release(self, lock):
        self.run(self.manager.unlock(lock.held))


worker.serve(OfAioredlock, importlib.metadata.version("aioredlock"))
