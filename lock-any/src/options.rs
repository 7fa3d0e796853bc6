//! The options of a URL that every backend knows.

use std::time::Duration;

use humantime::format_duration;
use lock_core::url::Url;
use lock_core::{Error, ErrorKind, Label, LockerBuilder};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// No backend has shorter leases, or anything to do in less.
const SHORTEST: Duration = Duration::from_millis(1);
/// Unless the option `max_ttl` says otherwise.
const LONGEST_TTL: Duration = DAY;
/// No backend has longer leases.
const LONGEST_MAX_TTL: Duration = DAY.saturating_mul(365);
/// A longer wait is a mistake, and sums of durations stay far from overflow.
pub(crate) const LONGEST_WAIT: Duration = DAY.saturating_mul(30);
/// Core's default lease, unless `max_ttl` is shorter.
pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// The options that every backend has.
#[cfg(feature = "quorum")]
pub(crate) const COMMON: [&str; 6] =
    ["ttl", "timeout", "outage_timeout", "max_ttl", "label", "handovers"];

/// The values of the options that every backend has.
#[derive(Debug, Default)]
pub(crate) struct CommonOptions {
    ttl: Option<Duration>,
    timeout: Option<Duration>,
    outage_timeout: Option<Duration>,
    max_ttl: Option<Duration>,
    label: Option<Label>,
    handovers: Option<u8>,
}

impl CommonOptions {
    pub(crate) fn take_from(url: &mut Url) -> Result<Self, Error> {
        let options = Self {
            ttl: url.take_duration("ttl")?,
            timeout: take_within(url, "timeout", LONGEST_WAIT)?,
            outage_timeout: take_within(url, "outage_timeout", LONGEST_WAIT)?,
            max_ttl: take_within(url, "max_ttl", LONGEST_MAX_TTL)?,
            label: url.take("label")?.map(|label| Label::new(&label)),
            handovers: take_handovers(url)?,
        };
        // Each backend has limits of its own. A value beyond all of them is refused before any I/O.
        let longest = options.max_ttl.unwrap_or(LONGEST_TTL);
        within("ttl", options.ttl, longest)?;
        Ok(options)
    }

    /// Returns the lease that the URL sets.
    pub(crate) fn ttl(&self) -> Option<Duration> {
        self.ttl.or_else(|| self.max_ttl.map(|longest| DEFAULT_TTL.min(longest)))
    }

    /// Returns the longest lease, for backends that declare it.
    pub(crate) fn max_ttl(&self) -> Option<Duration> {
        self.max_ttl
    }

    pub(crate) fn apply(self, mut builder: LockerBuilder) -> LockerBuilder {
        if let Some(ttl) = self.ttl {
            builder = builder.default_ttl(ttl);
        }
        if let Some(timeout) = self.timeout {
            builder = builder.timeout(timeout);
        }
        if let Some(outage_timeout) = self.outage_timeout {
            builder = builder.outage_timeout(outage_timeout);
        }
        if let Some(max_ttl) = self.max_ttl {
            builder = builder.max_ttl(max_ttl);
        }
        if let Some(label) = self.label {
            builder = builder.label(label);
        }
        if let Some(at_most) = self.handovers {
            builder = builder.local_handovers(at_most);
        }
        builder
    }
}

fn take_handovers(url: &mut Url) -> Result<Option<u8>, Error> {
    let Some(value) = url.take("handovers")? else { return Ok(None) };
    value.parse().map(Some).map_err(|_| {
        let why = "the URL option handovers is a number from 0, which is off, to 255";
        Error::new(ErrorKind::Invalid, why)
    })
}

pub(crate) fn take_within(
    url: &mut Url,
    name: &str,
    longest: Duration,
) -> Result<Option<Duration>, Error> {
    within(name, url.take_duration(name)?, longest)
}

fn within(
    name: &str,
    given: Option<Duration>,
    longest: Duration,
) -> Result<Option<Duration>, Error> {
    if given.is_none_or(|duration| (SHORTEST..=longest).contains(&duration)) {
        return Ok(given);
    }
    let (shortest, longest) = (format_duration(SHORTEST), shown(longest));
    let why = format!("the URL option {name} is out of range; it is from {shortest} to {longest}");
    Err(Error::new(ErrorKind::Invalid, why))
}

/// Formats a duration in days, where humantime would write months of 30.44 days.
fn shown(duration: Duration) -> String {
    let days = duration.as_secs() / DAY.as_secs();
    if days > 1 && duration == DAY.saturating_mul(u32::try_from(days).unwrap_or(u32::MAX)) {
        return format!("{days}days");
    }
    format_duration(duration).to_string()
}
