// A worker that locks with redlock (node-redlock) 4. Options: `retryDelay=MS` between two polls, 200 by default, and
// `retryJitter=MS` more or less, 100 by default.
'use strict';

const Redis = require('ioredis');
const Redlock = require('redlock');
const { members, serve } = require('./worker.js');

class NodeRedlock {
  constructor(url, options) {
    this.cannotKeep = 'it renews nothing by itself';
    this.clients = members(url).map((member) => new Redis(member));
    // By default a waiter gives up after 10 polls; here it waits until it is served.
    this.redlock = new Redlock(this.clients, { retryCount: -1, ...options });
    this.once = new Redlock(this.clients, { retryCount: 0 });
  }

  async acquire(name, ttlMs) {
    return this.redlock.lock(name, ttlMs);
  }

  async tryAcquire(name, ttlMs) {
    try {
      return await this.once.lock(name, ttlMs);
    } catch (error) {
      if (error.name === 'LockError') return null;
      throw error;
    }
  }

  async extend(lock, ttlMs) {
    return lock.extend(ttlMs);
  }

  isHeld(lock) {
    return Date.now() < lock.expiration;
  }

  async release(lock) {
    await lock.unlock();
  }
}

serve(async (url, options) => {
  const library = new NodeRedlock(url, options);
  await Promise.all(library.clients.map((client) => client.ping()));
  return library;
}, require('redlock/package.json').version);
