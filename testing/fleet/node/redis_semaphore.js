// A worker that locks with redis-semaphore's Mutex, and on several servers with its RedlockMutex. It polls every 10 ms
// by default. Option: `limit=N` for a Semaphore instead.
'use strict';

const Redis = require('ioredis');
const { Mutex, RedlockMutex, Semaphore } = require('redis-semaphore');
const { members, serve } = require('./worker.js');

class RedisSemaphore {
  constructor(url, { limit }) {
    this.limit = limit;
    this.clients = members(url).map((member) => new Redis(member));
  }

  mutex(name, ttlMs, more) {
    // By default a waiter gives up after 10 s; here it waits until it is served.
    const options = { lockTimeout: ttlMs, acquireTimeout: 1e9, onLockLost: () => {}, ...more };
    const { clients, limit } = this;
    if (limit) return new Semaphore(clients[0], name, limit, options);
    return clients.length === 1 ? new Mutex(clients[0], name, options) : new RedlockMutex(clients, name, options);
  }

  async acquire(name, ttlMs) {
    const mutex = this.mutex(name, ttlMs);
    await mutex.acquire();
    return mutex;
  }

  async tryAcquire(name, ttlMs) {
    const mutex = this.mutex(name, ttlMs, { acquireAttemptsLimit: 1 });
    return (await mutex.tryAcquire()) ? mutex : null;
  }

  isHeld(mutex) {
    return mutex.isAcquired;
  }

  async release(mutex) {
    await mutex.release();
  }
}

serve(async (url, options) => {
  const library = new RedisSemaphore(url, options);
  await Promise.all(library.clients.map((client) => client.ping()));
  return library;
}, require('redis-semaphore/package.json').version);
