//! The URLs of [`connect`](crate::connect). Smaller than the general kind, and with several hosts.

use std::path::PathBuf;
use std::time::Duration;

use lock_core::{Error, ErrorKind, Label, LockerBuilder};
use percent_encoding::percent_decode_str;

/// No backend has shorter leases.
const SHORTEST_TTL: Duration = Duration::from_millis(1);
/// Unless the option `max_ttl` says otherwise.
const LONGEST_TTL: Duration = Duration::from_secs(24 * 3600);

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
        if query.contains('#') || location.contains('#') {
            return Err(invalid("a backend URL has no fragment; write # as %23"));
        }
        let mut options: Vec<(String, String)> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair
                .split_once('=')
                .ok_or_else(|| invalid(format!("the URL option {pair:?} has no value")))?;
            if options.iter().any(|(known, _)| known == name) {
                return Err(invalid(format!("the URL option {name:?} is given twice")));
            }
            options.push((name.to_owned(), decode(value)?));
        }
        Ok(Self { scheme: scheme.to_ascii_lowercase(), location: location.to_owned(), options })
    }

    pub(crate) fn scheme(&self) -> &str {
        &self.scheme
    }

    pub(crate) fn take_common_options(&mut self) -> Result<CommonOptions, Error> {
        let options = CommonOptions {
            ttl: self.take_duration("ttl")?,
            timeout: self.take_duration("timeout")?,
            patience: self.take_duration("patience")?,
            max_ttl: self.take_duration("max_ttl")?,
            label: self.take("label").map(|label| Label::new(&label)),
        };
        // Each backend has limits of its own; what is absurd for all is found before one is touched.
        let longest = options.max_ttl.unwrap_or(LONGEST_TTL);
        if options.ttl.is_some_and(|ttl| ttl < SHORTEST_TTL || ttl > longest) {
            return Err(invalid(format!(
                "the URL option ttl is out of range; it is from {SHORTEST_TTL:?} to {longest:?}"
            )));
        }
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
    #[cfg_attr(not(feature = "file"), allow(dead_code, reason = "the file backend is off"))]
    pub(crate) fn into_path(self, form: &str) -> Result<Option<PathBuf>, Error> {
        self.no_more_options()?;
        let path = self.location.strip_prefix("//").unwrap_or(&self.location);
        if path.is_empty() {
            return Ok(None);
        }
        if !path.starts_with('/') {
            return Err(invalid(format!("the directory must be an absolute path: write {form}")));
        }
        Ok(Some(PathBuf::from(decode(path)?)))
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
                "the URL option {name}={value:?} is not a positive duration; write 500ms, 30s or 2h"
            ))),
        }
    }
}

impl CommonOptions {
    pub(crate) fn ttl(&self) -> Option<Duration> {
        self.ttl
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
