//! A relay that adds latency before the server, to count round trips.

use std::time::Duration;

use lock_bench_worker::clock::MILLI;
use lock_conformance::proxy::{Fault, Proxy};

use super::error::{Result, RunError};
use super::services::Server;

/// The least number of times at each latency.
const BATCHES: u64 = 3;

/// The greatest number, if other load keeps the times apart.
const MAX_BATCHES: u64 = 12;

/// The ratio of the long latency to the short one.
const STRETCH: u64 = 3;

/// Our own requests in each batch.
const PINGS: usize = 2;

/// A relay in front of a server. It is a delay line: requests that are sent together arrive
/// together, however many are in flight. So they do not seem to wait for each other.
pub(crate) struct Relay {
    /// One for each server.
    proxies: Vec<Proxy>,
    pub(crate) url: String,
    delay: u64,
}

/// The shortest times at one latency, in nanoseconds.
#[derive(Clone, Copy)]
struct Times {
    work: Shortest,
    trip: Shortest,
}

impl Times {
    const NONE: Self = Self { work: Shortest::NONE, trip: Shortest::NONE };

    fn agree(&self) -> bool {
        self.work.agree() && self.trip.agree()
    }
}

/// The shortest two of several times.
#[derive(Clone, Copy)]
struct Shortest(f64, f64);

impl Shortest {
    const NONE: Self = Self(f64::INFINITY, f64::INFINITY);

    fn add(&mut self, time: f64) {
        if time < self.0 {
            *self = Self(time, self.0);
        } else {
            self.1 = self.1.min(time);
        }
    }

    /// Returns whether both agree: other load does not add the same time twice.
    fn agree(self) -> bool {
        self.1 / self.0 < 1.03
    }
}

impl Relay {
    /// Starts a relay. `delay` is the short latency in each direction, in ms.
    pub(crate) fn start(server: &dyn Server, delay: u64) -> Result<Self> {
        let proxies: Result<Vec<_>, _> = server.addrs().into_iter().map(Proxy::start).collect();
        let proxies = proxies.map_err(RunError::context("the relay cannot be started"))?;
        let addrs: Vec<_> = proxies.iter().map(Proxy::addr).collect();
        let url = server.url_at(&addrs);
        let relay = Self { proxies, url, delay: delay.max(1) };
        relay.stretch(1);
        Ok(relay)
    }

    /// Counts the round trips of the work that `time` does and measures, in nanoseconds. Its
    /// argument is the delay in each direction, in ms.
    ///
    /// The work is done at a short and at a long latency. The difference is due to the latency:
    /// computation, and the overhead of the relay, are the same in both and cancel out. Of several
    /// times the shortest counts, if another one is nearly as short, as other load only adds to
    /// them. The true latency is that of the cheapest requests, sent through the same relay at the
    /// same time.
    pub(crate) fn round_trips(
        &self,
        server: &dyn Server,
        mut time: impl FnMut(u64) -> Result<f64>,
    ) -> Result<f64> {
        let nothing = || RunError::Failed("through the relay, no time was taken".into());
        let mut shortest = [Times::NONE; 2];
        for batch in 1..=MAX_BATCHES {
            // In turns, so that a busy second does not affect only one of the two.
            for (times, stretch) in shortest.iter_mut().zip([1, STRETCH]) {
                self.stretch(stretch);
                times.work.add(time(self.delay * stretch)?);
                let trips = server.round_trips(self.proxies[0].addr(), PINGS, 0)?;
                times.trip.add(trips.into_iter().min().unwrap_or(u64::MAX) as f64);
            }
            let [short, long] = shortest;
            let told = (2 * (STRETCH - 1) * self.delay * MILLI) as f64;
            let way = long.trip.0 - short.trip.0;
            let is_clear = (way / told - 1.0).abs() < 0.1;
            let is_calm = is_clear && short.agree() && long.agree();
            let is_last = batch == MAX_BATCHES || !short.work.0.is_finite();
            if batch >= BATCHES && (is_calm || (is_last && is_clear)) {
                self.stretch(1);
                let trips = (long.work.0 - short.work.0) / way;
                // It is infinite if no time was measured.
                return trips.is_finite().then_some(trips).ok_or_else(nothing);
            }
        }
        Err(RunError::Failed(
            "the machine is too busy to tell how long the way through the relay is".into(),
        ))
    }

    /// Returns the bytes to the server and from it so far.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let stats = self.proxies.iter().map(Proxy::stats);
        stats.fold((0, 0), |(up, down), stats| {
            (up + stats.to_server.received, down + stats.to_client.received)
        })
    }

    fn stretch(&self, stretch: u64) {
        let delay = Duration::from_millis(self.delay * stretch);
        self.proxies.iter().for_each(|proxy| proxy.set(Fault::delay(delay)));
    }
}
