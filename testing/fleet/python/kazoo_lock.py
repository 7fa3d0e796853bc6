"""A worker that locks with kazoo's Lock."""

import kazoo.version
import worker
from kazoo.client import KazooClient


class Kazoo(worker.Library):
    def __init__(self, url, _options):
        address, _, options = url.removeprefix("zookeeper://").partition("?")
        timeout = float(options.removeprefix("session_timeout=").removesuffix("s") or 10)
        self.client = KazooClient(hosts=address, timeout=timeout)
        self.client.start()

    def lock(self, name, _ttl_ms):
        return self.client.Lock("/" + name, "worker")

    def acquire(self, lock):
        lock.acquire()

    def release(self, lock):
        lock.release()


worker.serve(Kazoo, kazoo.version.__version__)
