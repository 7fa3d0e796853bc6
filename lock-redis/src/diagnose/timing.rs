//! Measurements: the round trip, and the server's clock beside ours.

use std::time::Duration;

use lock_core::clock::{Moment, sleep_until, wall};
use lock_core::diagnosis::{Finding, percentile};

use crate::diagnose::probe::{Probe, Seen};

/// The requests of the first measurement, and of the second one.
const REQUESTS: usize = 50;
const FEW_REQUESTS: usize = 10;

/// The time after which the first one ends, with fewer requests.
const LONG_ENOUGH: Duration = Duration::from_secs(5);

/// The least and the longest time between the two.
const INTERVAL: Duration = Duration::from_secs(2);
const LONGEST_INTERVAL: Duration = Duration::from_secs(10);

/// The round trips between the two. Each makes the rate uncertain by its share of the interval, so
/// 100 would use up the margin.
const ROUND_TRIPS: u32 = 150;

/// How much faster or slower than ours the server's clock may run, in ppm: core's margin.
const MARGIN: i64 = 10_000;

/// From this difference within the interval on, the clock was set.
const JUMP: i64 = 250_000;

/// A difference to our clock that no time service leaves.
const WRONG: Duration = Duration::from_secs(60);

/// Core gives a renewal up after this part of the lease.
const RENEWALS_IN_LEASE: u32 = 6;

/// The longest useful lease of a lock that is renewed: a third of the usual one.
const LONGEST: Duration = Duration::from_secs(10);

/// A measurement that has begun.
pub(crate) struct Measurement(Seen<Vec<Reading>>);

/// One reading of the server's clock.
#[derive(Clone, Copy)]
struct Reading {
    asked: Moment,
    answered: Moment,
    /// Ours when it was asked, and the server's, in µs since 1970.
    ours: i64,
    theirs: i64,
}

impl Measurement {
    /// Reads the clock many times.
    pub(crate) async fn begin(probe: &Probe) -> Self {
        Self(read(probe, REQUESTS).await)
    }

    /// Reads the clock again after a while, and returns the findings.
    pub(crate) async fn end(self, probe: &Probe) -> Vec<Finding> {
        let readings = match self.0 {
            Ok(readings) => readings,
            Err(unseen) => {
                return vec![unseen.clone().finding("round trip"), unseen.finding("clock")];
            }
        };
        let round_trip = round_trip(&readings, probe.config().min_ttl());
        let Some(first) = fastest(&readings) else { return vec![round_trip] };
        sleep_until(first.asked + interval(first.took())).await;
        let again = read(probe, FEW_REQUESTS).await;
        let clock = match again.as_deref().map(fastest) {
            Ok(Some(second)) => clock(first, second),
            Ok(None) => return vec![round_trip],
            Err(unseen) => unseen.clone().finding("clock"),
        };
        vec![round_trip, clock]
    }
}

impl Reading {
    fn took(&self) -> Duration {
        self.answered.saturating_since(self.asked)
    }

    /// Returns by how much the server's clock is ahead of ours, in µs.
    fn ahead(&self) -> i64 {
        self.theirs - self.ours - micros(self.took() / 2)
    }
}

/// Returns the time between two measurements with this round trip.
fn interval(round_trip: Duration) -> Duration {
    round_trip.saturating_mul(ROUND_TRIPS).clamp(INTERVAL, LONGEST_INTERVAL)
}

async fn read(probe: &Probe, count: usize) -> Seen<Vec<Reading>> {
    let mut readings: Vec<Reading> = Vec::with_capacity(count);
    let began = Moment::now();
    while readings.len() < count && !(began + LONG_ENOUGH).has_passed() {
        // TIME and not PING: users of locks have that right.
        let (ours, asked) = (micros(wall()), Moment::now());
        let (secs, rest): (i64, i64) = probe.ask(&redis::cmd("TIME"), "TIME", "time").await?;
        let theirs = secs.saturating_mul(1_000_000).saturating_add(rest);
        readings.push(Reading { asked, answered: Moment::now(), ours, theirs });
    }
    Ok(readings)
}

fn fastest(readings: &[Reading]) -> Option<Reading> {
    readings.iter().copied().min_by_key(Reading::took)
}

fn round_trip(readings: &[Reading], min_ttl: Duration) -> Finding {
    let mut times: Vec<_> = readings.iter().map(Reading::took).collect();
    times.sort_unstable();
    let (p50, p99) = (percentile(&times, 50), percentile(&times, 99));
    // Whole milliseconds: it is a hint.
    let shortest = Duration::from_millis((p99 * RENEWALS_IN_LEASE).as_millis() as u64);
    let shortest = shortest.max(min_ttl);
    let text = format!("p50 {p50:.1?}, p99 {p99:.1?}: the shortest lease is {shortest:?}");
    match shortest > LONGEST {
        true => Finding::warning("round trip", text)
            .remedy("use longer leases, a nearer server, or a less busy one"),
        false => Finding::ok("round trip", text),
    }
}

fn clock(first: Reading, second: Reading) -> Finding {
    // By the server's clock it is exact, and by ours between these two.
    let theirs = second.theirs - first.theirs;
    let least = micros(second.asked.saturating_since(first.answered)).max(1);
    let most = micros(second.answered.saturating_since(first.asked)).max(1);
    let rate = |ours: i64| (theirs - ours).saturating_mul(1_000_000) / ours;
    let (lowest, highest) = (rate(most), rate(least));
    let sync = "synchronise the clocks of servers and clients, by slewing and not by steps";
    let warning = |text: String| Finding::warning("clock", text).remedy(sync);
    let percent = |ppm: i64| format!("{:.2} %", ppm as f64 / 10_000.0);
    if lowest > JUMP || highest < -JUMP {
        let by = theirs - i64::midpoint(least, most);
        return warning(format!(
            "it was set by {} while it was measured: leases ended early, or \
             last longer",
            signed(by)
        ));
    }
    if lowest > MARGIN {
        let fast = percent(lowest);
        return warning(format!("it runs at least {fast} fast: leases end before holders stop"));
    }
    if highest < -MARGIN {
        let slow = percent(-highest);
        return warning(format!("it runs at least {slow} slow: crashed holders are replaced late"));
    }
    if lowest < -MARGIN || highest > MARGIN {
        let why = "the round trip is too long to measure its rate within ten seconds";
        return Finding::unseen("clock", why).remedy("run this nearer to the server");
    }
    let ahead = first.ahead();
    let differs = signed(ahead);
    match (Duration::from_micros(ahead.unsigned_abs()) < WRONG, ahead < 0) {
        (true, _) => {
            let drift = percent(lowest.abs().max(highest.abs()));
            Finding::ok("clock", format!("{differs} to ours, at a rate within {drift} of ours"))
        }
        (false, true) => warning(format!(
            "{differs} to ours: fencing tokens follow it, and fall behind those of an earlier \
             server or of a right clock if the data are lost"
        )),
        (false, false) => warning(format!(
            "{differs} to ours: fencing tokens follow it, and fall back if it is set right and the \
             data are lost"
        )),
    }
}

/// Shows a difference in a fitting unit.
fn signed(micros: i64) -> String {
    let sign = if micros < 0 { '-' } else { '+' };
    let by = Duration::from_micros(micros.unsigned_abs());
    let rounded = by.saturating_add(Duration::from_millis(500)).as_secs();
    match rounded {
        secs @ 172_800.. => format!("{sign}{} days", secs / 86_400),
        secs @ 120.. => format!("{sign}{secs} s"),
        _ => format!("{sign}{by:.1?}"),
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::diagnosis::Severity;

    /// Returns a reading at `at`, after a round trip of `took`, of a clock at `theirs`.
    fn reading(at: Moment, took: Duration, theirs: i64) -> Reading {
        Reading { asked: at, answered: at + took, ours: 0, theirs }
    }

    #[test]
    fn a_slow_network_hides_the_rate_of_a_clock() {
        let begin = Moment::now();
        let of = |took| {
            let first = reading(begin, took, 0);
            let after = interval(took);
            clock(first, reading(begin + after, took, micros(after)))
        };
        assert_eq!(of(Duration::from_millis(5)).severity, Severity::Ok);
        assert_eq!(of(Duration::from_millis(50)).severity, Severity::Ok);
        let hidden = of(Duration::from_millis(150));
        assert_eq!(hidden.severity, Severity::Warning);
        assert!(hidden.text.contains("could not be seen"), "{hidden}");
    }

    #[test]
    fn a_renewal_needs_room_for_its_round_trip() {
        let begin = Moment::now();
        let of = |took: u64| {
            let readings = vec![reading(begin, Duration::from_millis(took), 0); REQUESTS];
            round_trip(&readings, Duration::from_millis(10))
        };
        assert!(of(1).text.contains("the shortest lease is 10ms"), "{}", of(1));
        assert!(of(100).text.contains("the shortest lease is 600ms"), "{}", of(100));
        assert_eq!(of(1600).severity, Severity::Ok);
        assert_eq!(of(1700).severity, Severity::Warning);
    }
}
