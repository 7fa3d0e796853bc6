//! `quorum:` URLs, and the shortest way to them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lock_core::diagnosis::Finding;
use lock_core::url::Url;
use lock_core::{Error, ErrorKind, Locker, LockerBuilder};
use lock_quorum::{Quorum, QuorumBuilder};

use crate::backends;
use crate::diagnose::checks_of;
use crate::options::{COMMON, LONGEST_WAIT, take_within};

/// Connects to a majority of the servers at `urls`, as `quorum:?member=…` of
/// [`connect`](crate::connect) does: Redlock, if they are independent Redis servers.
///
/// ```no_run
/// # async fn example() -> Result<(), lock_any::Error> {
/// let locks = lock_any::redlock(["redis://a", "redis://b", "redis://c"]).await?;
/// # drop(locks); Ok(()) }
/// ```
///
/// # Errors
///
/// As [`connect`](crate::connect). An even number of URLs is [`ErrorKind::Invalid`].
///
/// # Cancel safety
///
/// As [`connect`](crate::connect).
pub async fn redlock<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Locker, Error> {
    let members: Vec<_> =
        urls.into_iter().map(|url| member(url.as_ref())).collect::<Result<_, _>>()?;
    must_agree(&members)?;
    Ok(Locker::new(quorum_of(members, None).build().await?))
}

pub(crate) async fn builder(url: Url, max_ttl: Option<Duration>) -> Result<LockerBuilder, Error> {
    Ok(Locker::builder(members_of(url, max_ttl)?.build().await?))
}

/// Checks a quorum and its members.
pub(crate) async fn diagnose(url: Url, max_ttl: Option<Duration>) -> Result<Vec<Finding>, Error> {
    let members = urls_of_members(&mut url.clone())?;
    let builder = members_of(url, max_ttl)?;
    let checks = members.into_iter().map(|url| checks_of(url, max_ttl));
    let checks: Vec<_> = checks.collect::<Result<_, _>>()?;
    Ok(builder.diagnose(checks).await)
}

/// Reads the members and the options of a quorum. No I/O.
pub(crate) fn members_of(mut url: Url, max_ttl: Option<Duration>) -> Result<QuorumBuilder, Error> {
    let members = urls_of_members(&mut url)?;
    must_agree(&members)?;
    let remember = match url.take("restarts")?.as_deref() {
        None | Some("forget") => false,
        Some("remember") => true,
        Some(_) => return Err(invalid("the URL option restarts is forget or remember")),
    };
    let timeout = take_within(&mut url, "member_timeout", LONGEST_WAIT)?;
    url.no_more_options()?;
    if !url.location().is_empty() {
        return Err(invalid("the members of a quorum are options: write quorum:?member=…"));
    }
    let mut builder = quorum_of(members, max_ttl);
    if remember {
        builder = builder.members_remember();
    }
    if let Some(timeout) = timeout {
        builder = builder.member_timeout(timeout);
    }
    Ok(builder)
}

fn urls_of_members(url: &mut Url) -> Result<Vec<Url>, Error> {
    url.take_all("member")?.iter().map(|url| member(url)).collect()
}

fn quorum_of(members: Vec<Url>, max_ttl: Option<Duration>) -> QuorumBuilder {
    let builder = members.into_iter().fold(Quorum::builder(), |builder, member| {
        builder.member_by(shown(&member), move || {
            let member = member.clone();
            async move { Ok(Arc::clone(backends::connect(member, max_ttl).await?.backend())) }
        })
    });
    match max_ttl {
        Some(longest) => builder.longest_lease(longest),
        None => builder,
    }
}

fn member(url: &str) -> Result<Url, Error> {
    let url = Url::parse(url)?;
    if url.scheme() == "quorum" {
        return Err(invalid("a member of a quorum is no quorum itself"));
    }
    for name in COMMON {
        if !url.clone().take_all(name)?.is_empty() {
            return Err(invalid(format!(
                "the option {name} of a member holds for the whole quorum: write it there"
            )));
        }
    }
    Ok(url)
}

/// Refuses members of one kind that would store one lock under different keys: such a quorum does
/// not exclude clients of other members.
fn must_agree(members: &[Url]) -> Result<(), Error> {
    for option in ["names", "prefix"] {
        let mut first = HashMap::new();
        for member in members {
            let kind = member.scheme().split(['+', ':']).next().unwrap_or_default();
            let kind = if kind == "rediss" { "redis" } else { kind };
            let value = member.clone().take(option)?;
            let value = value.filter(|value| value != "encoded").unwrap_or_default();
            if *first.entry(kind.to_owned()).or_insert_with(|| value.clone()) != value {
                return Err(invalid(format!(
                    "the members of a quorum have different values of {option}: write the same for each {kind}: member"
                )));
            }
        }
    }
    Ok(())
}

/// Returns the location for messages, without credentials. A location that cannot be understood is
/// left out: it may be credentials without a host.
fn shown(url: &Url) -> String {
    let (scheme, location) = (url.scheme(), url.location());
    match location.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://{host}"),
        None if url.authority(1).is_err() && url.path().is_err() => format!("{scheme}:"),
        None => format!("{scheme}:{location}"),
    }
}

fn invalid(why: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::Invalid, why)
}
