//! Every schedule of a few disturbances from a small set, at every place of a coarse grid.

use crate::scenario::{Injection, Kind, Link, MEMBERS, Party, Scenario, Time};

const TIMEOUT_MS: u64 = 6000;
const TIMEOUT: Time = TIMEOUT_MS * 1000;
/// In thousandths of the timeout: a little more than the interval of heartbeat writes, than the
/// part of a span that must be left, and than a span.
const LENGTHS: [Time; 3] = [140, 180, 360];
const STARTS: Time = 10;
/// From the client to the leader and back, and to a quorum.
const HOPS: Time = 5;
const PING_PHASES: u64 = 3;
const TICK_PHASES: u64 = 3;

/// Returns the faults: one kind, at one time, for one length.
fn disturbances() -> Vec<Injection> {
    let mut all = Vec::new();
    for length in LENGTHS.map(|share| TIMEOUT * share / 1000) {
        let kinds = [
            Kind::Slow(Link::ClientTo(0), length),
            Kind::Slow(Link::ToClient(0), length),
            Kind::Slow(Link::ToLeader(0), length),
            Kind::Slow(Link::FromLeader(0), length),
            Kind::Stall(Party::Leader),
        ];
        for kind in kinds {
            for start in 0..STARTS {
                all.push(Injection { kind, from: start * TIMEOUT / STARTS, length });
            }
        }
    }
    all
}

/// Returns all schedules of up to `together` different faults.
pub(crate) fn all(together: u64) -> impl Iterator<Item = Scenario> {
    let disturbances = disturbances();
    let picks = picks(disturbances.len(), together);
    let settings = (0..PING_PHASES)
        .flat_map(|ping| (0..TICK_PHASES).map(move |tick| (ping, tick)))
        .flat_map(|(ping, tick)| [2, 5].map(|ticks| (ping, tick, ticks)));
    settings.flat_map(move |(ping, tick, ticks)| {
        let quiet = quiet(ping, tick, TIMEOUT_MS / ticks);
        let picked: Vec<Vec<Injection>> = picks
            .iter()
            .map(|pick| pick.iter().map(|&index| disturbances[index]).collect())
            .collect();
        picked.into_iter().map(move |disturbances| Scenario { disturbances, ..quiet.clone() })
    })
}

/// Returns schedules without faults, in which a commit takes so many thousandths of the timeout.
pub(crate) fn without_faults(commit: Time) -> impl Iterator<Item = Scenario> {
    let delay = TIMEOUT * commit / 1000 / HOPS;
    let phases = (0..PING_PHASES).flat_map(|ping| (0..TICK_PHASES).map(move |tick| (ping, tick)));
    phases.flat_map(move |(ping, tick)| {
        [2, 5].map(|ticks| {
            let quiet = quiet(ping, tick, TIMEOUT_MS / ticks);
            Scenario { delay, horizon: 20 * TIMEOUT, ..quiet }
        })
    })
}

fn picks(of: usize, together: u64) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    let mut last = all.clone();
    for _ in 0..together {
        last = last
            .iter()
            .flat_map(|pick: &Vec<usize>| {
                let next = pick.last().map_or(0, |last| last + 1);
                (next..of).map(|index| [&pick[..], &[index]].concat())
            })
            .collect();
        all.extend(last.iter().cloned());
    }
    all
}

fn quiet(ping_phase: u64, tick_phase: u64, tick_ms: u64) -> Scenario {
    Scenario {
        seed: 0,
        timeout_ms: TIMEOUT_MS,
        grants_ms: [TIMEOUT_MS; MEMBERS],
        tick_ms,
        client_rate: 9900,
        leader_rate: 10_100,
        leader_clock: 10 * tick_ms * 1000 + tick_phase * tick_ms * 1000 / TICK_PHASES,
        first_ping: ping_phase * tick_ms * 500 / PING_PHASES,
        member: 0,
        pings: false,
        delay: 1000,
        jitter: 0,
        wake: 0,
        punctual: true,
        event: None,
        disturbances: Vec::new(),
        horizon: TIMEOUT * 2,
    }
}
