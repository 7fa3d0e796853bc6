//! Mistakes in the scripts that a simulation has to find out: one text that reads otherwise.

use super::server::Sabotage;

pub(crate) struct Saboteur {
    pub(crate) name: &'static str,
    pub(crate) sabotage: Sabotage,
}

const fn saboteur(name: &'static str, is: &'static str, becomes: &'static str) -> Saboteur {
    Saboteur { name, sabotage: Sabotage { is, becomes } }
}

pub(crate) const SABOTEURS: [Saboteur; 4] = [
    saboteur(
        "releases whoever holds the lock",
        "type(value) == 'string' and string.sub(value, 1, 32) == owner\nif ours",
        "type(value) == 'string' and value ~= ''\nif ours",
    ),
    saboteur("does not ask the clock for fences", "local number = now\n", "local number = 1\n"),
    saboteur(
        "serves whoever came last",
        "local member = first(queue, is_gone)\n",
        "local member = redis.call('ZRANGE', queue, -1, -1)[1]\n",
    ),
    saboteur(
        "lets others in before those who wait",
        "redis.call('EXISTS', tombstone, queue) == 0",
        "redis.call('EXISTS', tombstone) == 0",
    ),
];
