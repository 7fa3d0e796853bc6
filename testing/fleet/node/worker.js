// The worker protocol, for any lock library of node: PROTOCOL.md lists the commands.
//
// A library has `acquire(name, ttlMs, end)`, which waits and returns the held lock, and `release(held)`. A library
// whose waiters may keep the lock from everybody returns null after the end. It has `isHeld(held)`, if it knows,
// and `cannotKeep`, if a lock ends although its holder lives and does not release it. For the fleet it has
// `tryAcquire(name, ttlMs)`, which returns null if the lock is not free, and `extend(held, ttlMs)`, if it has such
// a call, which may return the new held lock. Without a URL, the worker prints the version of the library.
'use strict';

const fs = require('node:fs');
const readline = require('node:readline');

const now = () => Number(process.hrtime.bigint());
exports.now = now;

// Timers here have steps of a millisecond.
async function reach(moment) {
  for (let left = moment - now(); left > 0; left = moment - now()) {
    await new Promise((done) => setTimeout(done, Math.ceil(left / 1e6)));
  }
}

class Worker {
  constructor(library) {
    this.library = library;
    this.ttlMs = 30_000;
    this.held = new Map();
    this.claims = {};
    this.kept = [];
    this.waiters = [];
  }

  async ttl(ms) {
    this.ttlMs = Number(ms);
    return {};
  }

  async acquire(name) {
    const asked = now();
    const held = await this.library.acquire(name, this.ttlMs);
    return { name, asked, acquired: now(), held };
  }

  async release({ name, asked, acquired, held }) {
    const letGo = now();
    await this.library.release(held);
    const freed = now();
    (this.claims[name] ??= []).push([asked, acquired, letGo, freed, null]);
    return { let_go: letGo, freed };
  }

  async hold(name) {
    const one = await this.acquire(name);
    this.held.set(name, one);
    return { asked: one.asked, acquired: one.acquired, token: null };
  }

  async free(name) {
    const one = this.held.get(name);
    this.held.delete(name);
    return this.release(one);
  }

  async tryHold(name) {
    const asked = now();
    const held = await this.library.tryAcquire(name, this.ttlMs);
    if (held) this.held.set(name, { name, asked, acquired: now(), held });
    return { held: held !== null, asked, acquired: now() };
  }

  async extend(name, ms) {
    const one = this.held.get(name);
    if (!this.library.extend) return { cannot: 'the library has no such call' };
    one.held = (await this.library.extend(one.held, Number(ms))) ?? one.held;
    return { extended: true };
  }

  async isHeld(name) {
    const { library } = this;
    return { held: library.isHeld ? library.isHeld(this.held.get(name).held) : null };
  }

  // The read and the write are two steps, so that an overlap of two holders loses an update.
  async count(name, ms, holdUs, pauseUs, file) {
    const end = now() + Number(ms) * 1e6;
    const grants = [];
    while (now() < end) {
      const held = await this.library.acquire(name, this.ttlMs, end);
      if (held === null) break;
      const acquired = now();
      const seen = Number(fs.readFileSync(file, 'utf8'));
      await reach(now() + Number(holdUs) * 1000);
      fs.writeFileSync(file, String(seen + 1));
      const letGo = now();
      await this.library.release(held);
      grants.push([acquired, letGo]);
      await reach(now() + Number(pauseUs) * 1000);
    }
    return { grants };
  }

  async pairs(prefix, ...numbers) {
    const [tasks, count, ms, rate] = numbers.map(Number);
    const latency = [];
    const start = now();
    const end = ms ? start + ms * 1e6 : Infinity;
    const task = async (i) => {
      let begun = now();
      for (let done = 0; !count || done < count; done++) {
        if (rate) {
          begun = start + Math.floor(((done * tasks + i) * 1e9) / rate);
          if (begun >= end) return;
          await reach(begun);
        }
        await this.library.release(await this.library.acquire(`${prefix}-${i}`, this.ttlMs));
        const ended = now();
        latency.push([ended - begun, 1]);
        begun = ended;
        if (!rate && ended >= end) return;
      }
    };
    await Promise.all(Array.from({ length: tasks }, (_, i) => task(i)));
    return { start, end: now(), latency, fence_regressions: 0 };
  }

  async queue(name, ...numbers) {
    const [count, holdUs, times] = numbers.map(Number);
    const waiter = async () => {
      for (let i = 0; i < times; i++) {
        const one = await this.acquire(name);
        if (holdUs) await reach(one.acquired + holdUs * 1000);
        await this.release(one);
      }
    };
    // Each waiter has asked when its call returns.
    for (let i = 0; i < count; i++) this.waiters.push(waiter());
    return {};
  }

  async collect() {
    await Promise.all(this.waiters.splice(0));
    const { claims } = this;
    this.claims = {};
    return { claims };
  }

  async keep(prefix, count) {
    if (this.library.cannotKeep) return { cannot: this.library.cannotKeep };
    for (let i = 0; i < Number(count); i++) {
      this.kept.push(await this.library.acquire(`${prefix}-${i}`, this.ttlMs));
    }
    return this.stateOfKept();
  }

  async stateOfKept() {
    const { library, kept } = this;
    if (!library.isHeld) return { held: null, lost: null, least_left_ms: null };
    const held = kept.filter((one) => library.isHeld(one)).length;
    return { held, lost: kept.length - held, least_left_ms: null };
  }

  async drop() {
    await Promise.all(this.kept.splice(0).map((held) => this.library.release(held)));
    return {};
  }
}

// Returns the servers of a URL: one, or those of `quorum:?member=redis://a&member=redis://b`.
exports.members = function members(url) {
  if (!url.startsWith('quorum:?')) return [url];
  const pairs = url.slice('quorum:?'.length).split('&');
  return pairs.filter((pair) => pair.startsWith('member=')).map((pair) => pair.slice('member='.length));
};

// Creates the library with `make(url, options)`, with options such as `retryInterval=10`, and serves it.
exports.serve = async function serve(make, version) {
  const words = process.argv.slice(2);
  const url = words.pop();
  if (!url?.includes(':')) {
    console.log(version);
    return;
  }
  const options = words.map((word) => word.split('=')).map(([key, value]) => [key, Number(value)]);
  const worker = new Worker(await make(url, Object.fromEntries(options)));
  const commands = {
    ttl: worker.ttl,
    pairs: worker.pairs,
    hold: worker.hold,
    free: worker.free,
    try: worker.tryHold,
    extend: worker.extend,
    held: worker.isHeld,
    count: worker.count,
    queue: worker.queue,
    collect: worker.collect,
    keep: worker.keep,
    kept: worker.stateOfKept,
    drop: worker.drop,
  };
  console.log(JSON.stringify({ ready: 1 }));
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [command, ...rest] = line.split(' ');
    let answer;
    try {
      answer = await commands[command].apply(worker, rest);
    } catch (error) {
      answer = { error: String(error) };
    }
    console.log(JSON.stringify(answer));
  }
  process.exit(0);
};
