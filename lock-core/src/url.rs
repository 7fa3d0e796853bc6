//! URLs of lock spaces, for backends and for programs that choose one by its URL.
//!
//! `scheme:location?option=value&…`: smaller than the general kind, and with several hosts. Its
//! parts are percent-decoded. No error repeats any of it but names of options, and no `Debug`
//! either: it may hold a password.
//!
//! ```
//! # fn main() -> Result<(), lock_core::Error> {
//! use lock_core::url::Url;
//!
//! let mut url = Url::parse("chubby://bob:pass%20word@cell-1,cell-2:7000/ls?outage_timeout=10s")?;
//! let authority = url.authority(6000)?;
//! assert_eq!(authority.credentials, Some(("bob".into(), "pass word".into())));
//! assert_eq!(authority.hosts[1].to_string(), "cell-2:7000");
//! assert_eq!(authority.path, "ls");
//! let outage_timeout = url.take_duration("outage_timeout")?; // each option that is known is taken,
//! url.no_more_options()?; // and what is left is an error
//! # assert_eq!((url.scheme(), outage_timeout), ("chubby", Some(std::time::Duration::from_secs(10))));
//! # Ok(()) }
//! ```

use std::borrow::Cow;
use std::fmt;
use std::net::Ipv6Addr;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::error::{Error, ErrorKind};

/// Implements `TryFrom` of a [`Url`], a `&str` and a `String` for the configuration of a backend.
///
/// The type has the functions `new(&str)` and `of(&mut Url)`, which takes the options that it
/// knows. Other options are errors.
#[macro_export]
macro_rules! config_from_url {
    ($config:ty) => {
        impl TryFrom<$crate::url::Url> for $config {
            type Error = $crate::Error;

            fn try_from(mut url: $crate::url::Url) -> Result<Self, $crate::Error> {
                let config = Self::of(&mut url)?;
                url.no_more_options()?;
                Ok(config)
            }
        }

        impl TryFrom<&str> for $config {
            type Error = $crate::Error;

            fn try_from(url: &str) -> Result<Self, $crate::Error> {
                Self::new(url)
            }
        }

        impl TryFrom<String> for $config {
            type Error = $crate::Error;

            fn try_from(url: String) -> Result<Self, $crate::Error> {
                Self::new(&url)
            }
        }
    };
}

/// A URL, taken apart.
#[derive(Clone)]
pub struct Url {
    scheme: String,
    location: String,
    /// With the values as far as they have some.
    options: Vec<(String, Option<String>)>,
}

/// The part behind `//` in the URL of a server:
/// `[user:password@]host[:port][,host[:port]…][/path]`.
#[derive(Clone)]
pub struct Authority {
    /// User and password. The user may be empty.
    pub credentials: Option<(String, String)>,
    /// At least one, in the order in which they are written.
    pub hosts: Vec<Host>,
    /// Without the slash before it; empty if there is none.
    pub path: String,
}

/// Where a server listens. Displayed as `name:port`, with an IPv6 address in brackets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Host {
    /// A name or an address, without brackets.
    pub name: String,
    /// Not 0.
    pub port: u16,
}

/// The files of an encrypted connection, which URLs call `ca`, `cert` and `key`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The authorities that vouch for the server.
    pub authorities: Option<String>,
    /// The client's certificate, and its private key.
    pub identity: Option<(String, String)>,
}

impl Url {
    /// Parses a URL. Its location is not checked yet.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it has no scheme, has a fragment or an option that is not called
    /// by lower-case letters and `_`, or if its options may be a part of a password.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let (scheme, rest) =
            text.split_once(':').filter(|(scheme, _)| is_scheme(scheme)).ok_or_else(|| {
                invalid("a backend URL begins with a scheme, as in memory: or redis://host")
            })?;
        let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
        if rest.contains('#') {
            return Err(invalid("a backend URL has no fragment; write # as %23"));
        }
        if query.contains('@') && may_end_in_a_password(location) {
            return Err(invalid("write ? in a password as %3F, and @ in a URL option as %40"));
        }
        let scheme = scheme.to_ascii_lowercase();
        Ok(Self { scheme, location: location.to_owned(), options: options(query)? })
    }

    /// Returns the scheme, in lower case, without the colon.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// Returns the text between the scheme and the options as it is written: not decoded, and with
    /// credentials if there are some.
    #[must_use]
    pub fn location(&self) -> &str {
        &self.location
    }

    /// Returns the location of a URL that names servers. Hosts without a port have `default_port`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it does not.
    pub fn authority(&self, default_port: u16) -> Result<Authority, Error> {
        let scheme = &self.scheme;
        let location = self.location.strip_prefix("//").ok_or_else(|| {
            invalid(format!("the URL of a server begins with two slashes: write {scheme}://host"))
        })?;
        let (credentials, rest) = match location.rsplit_once('@') {
            Some((credentials, rest)) => (Some(self.credentials(credentials)?), rest),
            None => (None, location),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let hosts = hosts.split(',').map(|host| self.host(host, default_port));
        Ok(Authority { credentials, hosts: hosts.collect::<Result<_, _>>()?, path: decode(path)? })
    }

    /// Returns the absolute path that is the location, with or without `//` before it; `None` if
    /// there is none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it is something else.
    pub fn path(&self) -> Result<Option<String>, Error> {
        let path = self.location.strip_prefix("//").unwrap_or(&self.location);
        match path.as_bytes().first() {
            None => Ok(None),
            Some(b'/') => decode(path).map(Some),
            Some(_) => {
                let scheme = &self.scheme;
                Err(invalid(format!("the path must be an absolute path: write {scheme}:///path")))
            }
        }
    }

    /// Takes the value of an option, if it is given; once.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it has none, or is given twice.
    pub fn take(&mut self, name: &str) -> Result<Option<String>, Error> {
        let mut given = self.given(name);
        match given.len() {
            0 | 1 => given.pop().map(|value| value_of(name, value)).transpose(),
            _ => Err(invalid(format!("the URL option {name:?} is given twice"))),
        }
    }

    /// Takes the values of an option that may be given more than once, in their order; once.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if one has none.
    pub fn take_all(&mut self, name: &str) -> Result<Vec<String>, Error> {
        self.given(name).into_iter().map(|value| value_of(name, value)).collect()
    }

    /// Takes an option as [`take`](Self::take) does; a span of time like `500ms`, `30s` or `1h
    /// 30m`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it is none, or nothing.
    pub fn take_duration(&mut self, name: &str) -> Result<Option<Duration>, Error> {
        let Some(value) = self.take(name)? else { return Ok(None) };
        match humantime::parse_duration(&value) {
            Ok(duration) if !duration.is_zero() => Ok(Some(duration)),
            _ => Err(invalid(format!(
                "the URL option {name} is not a positive duration; write 500ms, 30s or 2h"
            ))),
        }
    }

    /// Takes the options `ca`, `cert` and `key`. They are for the scheme `encrypted`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if one is given with another scheme, or one of `cert` and `key`
    /// without the other.
    pub fn take_certificate_files(&mut self, encrypted: &str) -> Result<CertificateFiles, Error> {
        let mut files = [None, None, None];
        for (file, name) in files.iter_mut().zip(["ca", "cert", "key"]) {
            *file = self.take(name)?;
            if file.is_some() && self.scheme != encrypted {
                return Err(invalid(format!(
                    "the URL option {name} needs an encrypted connection: use {encrypted}://"
                )));
            }
        }
        let [authorities, cert, key] = files;
        if cert.is_some() != key.is_some() {
            return Err(invalid("the URL options cert and key go together: two files in PEM"));
        }
        Ok(CertificateFiles { authorities, identity: cert.zip(key) })
    }

    /// Demands that all options were taken.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`], naming one that was not.
    pub fn no_more_options(&self) -> Result<(), Error> {
        match self.options.first() {
            None => Ok(()),
            // It looks like one, and may be the end of a password.
            Some((_, None)) => Err(invalid("a URL option has no value; write ?name=value")),
            Some((name, Some(_))) => {
                Err(invalid(format!("the {}: backend has no URL option {name:?}", self.scheme)))
            }
        }
    }

    fn given(&mut self, name: &str) -> Vec<Option<String>> {
        let options = std::mem::take(&mut self.options);
        let (given, left): (Vec<_>, _) = options.into_iter().partition(|(known, _)| known == name);
        self.options = left;
        given.into_iter().map(|(_, value)| value).collect()
    }

    fn credentials(&self, text: &str) -> Result<(String, String), Error> {
        let (user, password) = text.split_once(':').ok_or_else(|| {
            invalid(format!("before the @ of a {}: URL stands user:password", self.scheme))
        })?;
        Ok((decode(user)?, decode(password)?))
    }

    fn host(&self, text: &str, default_port: u16) -> Result<Host, Error> {
        let (name, port) = split_host(text).ok_or_else(|| {
            let scheme = &self.scheme;
            let what =
                "names hosts, with commas between several, and an IPv6 address in [brackets]";
            invalid(format!("a {scheme}: URL {what}"))
        })?;
        match port.map_or(Ok(default_port), str::parse) {
            Ok(port) if port > 0 => Ok(Host { name, port }),
            _ => {
                Err(invalid(format!("the port of a {}: URL is a number up to 65535", self.scheme)))
            }
        }
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Url").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, port } = self;
        match name.contains(':') {
            true => write!(f, "[{name}]:{port}"),
            false => write!(f, "{name}:{port}"),
        }
    }
}

fn value_of(name: &str, value: Option<String>) -> Result<String, Error> {
    value.ok_or_else(|| invalid(format!("the URL option {name:?} has no value")))
}

/// Names are refused, and not repeated, unless they look like one: after a `?` that stands in a
/// password, they are a part of it.
fn options(query: &str) -> Result<Vec<(String, Option<String>)>, Error> {
    let mut options = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = match pair.split_once('=') {
            Some((name, value)) => (name, Some(decode(value)?)),
            None => (pair, None),
        };
        if name.is_empty() || !name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'_')) {
            return Err(invalid("a URL option has no proper name; write ?name=value"));
        }
        options.push((name.to_owned(), value));
    }
    Ok(options)
}

/// Returns true if a `?` may have cut `//user:password@host` in the middle of the password. An `@`
/// before it proves nothing: the password may contain one, too.
fn may_end_in_a_password(location: &str) -> bool {
    location.starts_with("//") && !location.starts_with("///") && location.contains(':')
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'))
}

/// Splits a name or an address from its port, if there is one.
fn split_host(text: &str) -> Option<(String, Option<&str>)> {
    let (name, rest, is_one): (_, _, fn(&str) -> bool) = match text.strip_prefix('[') {
        Some(v6) => {
            let (address, rest) = v6.split_once(']')?;
            (address, rest, is_v6)
        }
        None => {
            let (name, rest) = text.split_at(text.find(':').unwrap_or(text.len()));
            (name, rest, is_name)
        }
    };
    let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) };
    let name = decode(name).ok().filter(|name| is_one(name))?;
    Some((name, port))
}

fn is_name(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    !text.is_empty() && text.bytes().all(fits)
}

/// Returns true for an IPv6 address, with a zone or without.
fn is_v6(text: &str) -> bool {
    let (address, zone) = text.split_once('%').unwrap_or((text, "0"));
    address.parse::<Ipv6Addr>().is_ok() && is_name(zone)
}

fn decode(text: &str) -> Result<String, Error> {
    percent_decode_str(text)
        .decode_utf8()
        .map(Cow::into_owned)
        .map_err(|_| invalid("a backend URL must be UTF-8 after percent-decoding"))
}

fn invalid(why: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, why)
}
