"""A client of redis-py for many threads: its defaults are made for few, and give up after a while."""

import redis


def connect(url):
    client = redis.Redis.from_url(
        url, max_connections=4096, socket_timeout=None, socket_connect_timeout=None
    )
    client.ping()
    return client
