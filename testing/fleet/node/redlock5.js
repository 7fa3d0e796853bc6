// A worker that locks with redlock (node-redlock) 5.
'use strict';

const fs = require('node:fs');
const path = require('node:path');
const Redis = require('ioredis');
const { default: Redlock, ExecutionError, ResourceLockedError } = require('redlock5');
const { members, now, serve } = require('./worker.js');

// Whether no server said anything but that the lock is taken.
async function isTaken(error) {
  if (!(error instanceof ExecutionError)) return false;
  const attempts = await Promise.all(error.attempts);
  const votes = attempts.flatMap(({ votesAgainst }) => [...votesAgainst.values()]);
  return votes.every((vote) => vote instanceof ResourceLockedError);
}

class NodeRedlock5 {
  constructor(url) {
    this.cannotKeep = 'it renews only inside `using`';
    this.clients = members(url).map((member) => new Redis(member));
    this.redlock = new Redlock(this.clients);
    // Errors of single servers are reported here, and would end the process otherwise.
    this.redlock.on('error', () => {});
  }

  // By default a waiter gives up after 10 polls. Here it goes on until it is served, or until the end: the votes of
  // its failed attempts can keep the lock from everybody.
  async acquire(name, ttlMs, end = Infinity) {
    for (;;) {
      try {
        return await this.redlock.acquire([name], ttlMs);
      } catch (error) {
        if (!(await isTaken(error))) throw error;
        if (now() >= end) return null;
      }
    }
  }

  async tryAcquire(name, ttlMs) {
    try {
      return await this.redlock.acquire([name], ttlMs, { retryCount: 0 });
    } catch (error) {
      if (await isTaken(error)) return null;
      throw error;
    }
  }

  async extend(lock, ttlMs) {
    return this.redlock.extend(lock, ttlMs, { retryCount: 0 });
  }

  isHeld(lock) {
    return Date.now() < lock.expiration;
  }

  async release(lock) {
    await this.redlock.release(lock, { retryCount: 0 });
  }
}

// The package does not export its package.json, which names its version.
function version() {
  const folder = path.join(path.dirname(require.resolve('redlock5')), '../..');
  const { version: found } = JSON.parse(fs.readFileSync(path.join(folder, 'package.json'), 'utf8'));
  return found.replace('v', '');
}

serve(async (url) => {
  const library = new NodeRedlock5(url);
  await Promise.all(library.clients.map((client) => client.ping()));
  return library;
}, version());
