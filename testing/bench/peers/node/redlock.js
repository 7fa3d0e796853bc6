// A worker that locks with redlock (node-redlock). Options: `retryDelay=MS` between two polls, 200 by default, and
// `retryJitter=MS` more or less, 100 by default.
'use strict';

const Redis = require('ioredis');
const Redlock = require('redlock');
const { serve } = require('./worker.js');

class NodeRedlock {
  constructor(url, options) {
    this.cannotKeep = 'it renews nothing by itself';
    this.client = new Redis(url);
    // By default a waiter gives up after 10 polls; here it waits until it is served.
    this.redlock = new Redlock([this.client], { retryCount: -1, ...options });
  }

  async acquire(name, ttlMs) {
    return this.redlock.lock(name, ttlMs);
  }

  async release(lock) {
    await lock.unlock();
  }
}

serve(async (url, options) => {
  const library = new NodeRedlock(url, options);
  await library.client.ping();
  return library;
}, require('redlock/package.json').version);
