// A worker that locks with redis-semaphore's Mutex. It polls every 10 ms by default.
'use strict';

const Redis = require('ioredis');
const { Mutex } = require('redis-semaphore');
const { serve } = require('./worker.js');

class RedisSemaphore {
  constructor(url) {
    this.client = new Redis(url);
  }

  async acquire(name, ttlMs) {
    // By default a waiter gives up after 10 s; here it waits until it is served.
    const mutex = new Mutex(this.client, name, { lockTimeout: ttlMs, acquireTimeout: 1e9 });
    await mutex.acquire();
    return mutex;
  }

  isHeld(mutex) {
    return mutex.isAcquired;
  }

  async release(mutex) {
    await mutex.release();
  }
}

serve(async (url) => {
  const library = new RedisSemaphore(url);
  await library.client.ping();
  return library;
}, require('redis-semaphore/package.json').version);
