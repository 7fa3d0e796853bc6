//! The URLs of [`connect`](crate::connect). Smaller than the general kind, and with several hosts.

use std::time::Duration;

use humantime::format_duration;
use lock_core::{Error, ErrorKind, Label, LockerBuilder};
use percent_encoding::percent_decode_str;

use crate::KNOWN;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// No backend has shorter leases, or anything to do in less.
const SHORTEST: Duration = Duration::from_millis(1);
/// Unless the option `max_ttl` says otherwise.
const LONGEST_TTL: Duration = DAY;
/// No backend has longer leases.
const LONGEST_MAX_TTL: Duration = DAY.saturating_mul(365);
/// Whoever waits for longer has forgotten about it; and sums of times stay far from their end.
const LONGEST_WAIT: Duration = DAY.saturating_mul(30);
/// What core asks for if nobody says otherwise, and `max_ttl` allows it.
const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// What every backend can be told.
const COMMON: &[&str] = &["ttl", "timeout", "patience", "max_ttl", "label"];

/// `scheme:location?option=value&…`, taken apart. Holds no more than it was given, and shows none of
/// it: a location may hold a password.
pub(crate) struct Url {
    scheme: String,
    location: String,
    options: Vec<(String, String)>,
}

/// What every backend can be told.
#[derive(Debug, Default)]
pub(crate) struct CommonOptions {
    ttl: Option<Duration>,
    timeout: Option<Duration>,
    patience: Option<Duration>,
    max_ttl: Option<Duration>,
    label: Option<Label>,
}

impl Url {
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let (scheme, rest) = text
            .split_once(':')
            .filter(|(scheme, _)| is_scheme(scheme))
            .ok_or_else(|| invalid("a backend URL begins with a scheme, as in file: or memory:"))?;
        let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
        let scheme = scheme.to_ascii_lowercase();
        if !KNOWN.iter().any(|known| known.strip_suffix(':') == Some(scheme.as_str())) {
            let known = KNOWN.join(", ");
            return Err(invalid(format!("unknown backend {scheme:?}; known are {known}")));
        }
        if query.contains('#') || location.contains('#') {
            return Err(invalid("a backend URL has no fragment; write # as %23"));
        }
        if query.contains('@') && may_end_in_a_password(location) {
            return Err(invalid("write ? in a password as %3F, and @ in a URL option as %40"));
        }
        Ok(Self { scheme, location: location.to_owned(), options: options(query)? })
    }

    pub(crate) fn scheme(&self) -> &str {
        &self.scheme
    }

    pub(crate) fn take_common_options(&mut self) -> Result<CommonOptions, Error> {
        let options = CommonOptions {
            ttl: self.take_duration("ttl")?,
            timeout: self.take_within("timeout", LONGEST_WAIT)?,
            patience: self.take_within("patience", LONGEST_WAIT)?,
            max_ttl: self.take_within("max_ttl", LONGEST_MAX_TTL)?,
            label: self.take("label").map(|label| Label::new(&label)),
        };
        // Each backend has limits of its own; what is absurd for all is found before one is touched.
        let longest = options.max_ttl.unwrap_or(LONGEST_TTL);
        within("ttl", options.ttl, longest)?;
        Ok(options)
    }

    /// For backends that live nowhere in particular.
    pub(crate) fn without_location(self, form: &str) -> Result<(), Error> {
        self.no_more_options()?;
        if matches!(self.location.as_str(), "" | "//") {
            return Ok(());
        }
        Err(invalid(format!("nothing goes between the scheme and the options: write {form}")))
    }

    /// For backends that live in a directory; `None` if the URL names none.
    #[cfg(feature = "file")]
    pub(crate) fn into_path(self, form: &str) -> Result<Option<std::path::PathBuf>, Error> {
        self.no_more_options()?;
        let path = self.location.strip_prefix("//").unwrap_or(&self.location);
        if path.is_empty() {
            return Ok(None);
        }
        if !path.starts_with('/') {
            return Err(invalid(format!("the directory must be an absolute path: write {form}")));
        }
        Ok(Some(decode(path)?.into()))
    }

    /// For backends that read URLs themselves: what is left of this one.
    #[cfg(any(feature = "redis", feature = "zookeeper", feature = "memcache"))]
    pub(crate) fn to_text(&self) -> String {
        use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

        let mut text = format!("{}:{}", self.scheme, self.location);
        for (i, (name, value)) in self.options.iter().enumerate() {
            text.push(if i == 0 { '?' } else { '&' });
            text.push_str(name);
            text.push('=');
            text.extend(utf8_percent_encode(value, NON_ALPHANUMERIC));
        }
        text
    }

    fn no_more_options(&self) -> Result<(), Error> {
        match self.options.first() {
            None => Ok(()),
            Some((name, _)) => {
                Err(invalid(format!("the {}: backend has no URL option {name:?}", self.scheme)))
            }
        }
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.options.iter().position(|(known, _)| known == name)?;
        Some(self.options.remove(at).1)
    }

    fn take_duration(&mut self, name: &str) -> Result<Option<Duration>, Error> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match humantime::parse_duration(&value) {
            Ok(duration) if !duration.is_zero() => Ok(Some(duration)),
            _ => Err(invalid(format!(
                "the URL option {name} is not a positive duration; write 500ms, 30s or 2h"
            ))),
        }
    }

    fn take_within(&mut self, name: &str, longest: Duration) -> Result<Option<Duration>, Error> {
        within(name, self.take_duration(name)?, longest)
    }
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
    Err(invalid(format!(
        "the URL option {name} is out of range; it is from {shortest} to {longest}"
    )))
}

impl CommonOptions {
    /// The lease that is asked for, as far as the URL has a say in it.
    pub(crate) fn ttl(&self) -> Option<Duration> {
        self.ttl.or_else(|| self.max_ttl.map(|longest| DEFAULT_TTL.min(longest)))
    }

    /// The longest lease, for backends that declare it.
    #[cfg(feature = "redis")]
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
        if let Some(patience) = self.patience {
            builder = builder.patience(patience);
        }
        if let Some(max_ttl) = self.max_ttl {
            builder = builder.max_ttl(max_ttl);
        }
        if let Some(label) = self.label {
            builder = builder.label(label);
        }
        builder
    }
}

/// In days, where humantime would write months of 30.44 days.
fn shown(duration: Duration) -> String {
    let days = duration.as_secs() / DAY.as_secs();
    if days > 1 && duration == DAY.saturating_mul(u32::try_from(days).unwrap_or(u32::MAX)) {
        return format!("{days}days");
    }
    format_duration(duration).to_string()
}

/// Names are refused, and not repeated, unless they look like one: after a `?` that stands in a
/// password, they are a part of it.
fn options(query: &str) -> Result<Vec<(String, String)>, Error> {
    let mut options: Vec<(String, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').ok_or_else(|| match pair {
            known if COMMON.contains(&known) => {
                invalid(format!("the URL option {known:?} has no value"))
            }
            _ => invalid("a URL option has no value; write ?name=value"),
        })?;
        if name.is_empty() || !name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'_')) {
            return Err(invalid("a URL option has no proper name; write ?name=value"));
        }
        if options.iter().any(|(known, _)| known == name) {
            return Err(invalid(format!("the URL option {name:?} is given twice")));
        }
        options.push((name.to_owned(), decode(value)?));
    }
    Ok(options)
}

/// True if a `?` may have cut `//user:password@host` in the middle of the password.
fn may_end_in_a_password(location: &str) -> bool {
    location.starts_with("//")
        && !location.starts_with("///")
        && location.contains(':')
        && !location.contains('@')
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
}

fn decode(text: &str) -> Result<String, Error> {
    percent_decode_str(text)
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| invalid("a backend URL must be UTF-8 after percent-decoding"))
}

fn invalid(why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, why)
}
