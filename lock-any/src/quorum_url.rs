//! `quorum:` URLs, and the shortest way to them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use lock_core::diagnosis::Finding;
use lock_core::url::{Host, Url};
use lock_core::{Error, ErrorKind, Locker, LockerBuilder};
use lock_quorum::{Quorum, QuorumBuilder};

use crate::backends;
use crate::options::{COMMON, LONGEST_WAIT, take_within};
use crate::servers::Servers;

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

/// Reads the servers of the members. No I/O.
pub(crate) fn servers_of(url: &Url, max_ttl: Option<Duration>) -> Result<Vec<Arc<Servers>>, Error> {
    members_of(url.clone(), max_ttl)?;
    let members = urls_of_members(&mut url.clone())?.into_iter();
    members.map(|url| Servers::of(url, max_ttl).map(Arc::new)).collect()
}

/// Checks a quorum and its members.
pub(crate) async fn diagnose(
    url: &Url,
    max_ttl: Option<Duration>,
    members: &[Arc<Servers>],
) -> Vec<Finding> {
    let builder = match members_of(url.clone(), max_ttl) {
        Ok(builder) => builder,
        Err(error) => return vec![Finding::failure("members", format!("{error:#}"))],
    };
    let checks = members.iter().map(|member| {
        let member = Arc::clone(member);
        async move { member.check().await }
    });
    let mut findings = builder.diagnose(checks).await;
    let urls = urls_of_members(&mut url.clone()).unwrap_or_default();
    findings.extend(shared_hosts(&urls));
    findings
}

/// Returns a warning for each host with several members, as far as their URLs tell: members on one
/// host fail together.
fn shared_hosts(members: &[Url]) -> Vec<Finding> {
    let mut on_host: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (place, url) in members.iter().enumerate() {
        let hosts: BTreeSet<_> = hosts_of(url).into_iter().collect();
        for host in hosts {
            on_host.entry(host).or_default().push((place + 1).to_string());
        }
    }
    on_host.retain(|_, members| members.len() > 1);
    let warning = |(host, members): (String, Vec<String>)| {
        let text = format!("members {} are on {host}: they fail together", members.join(" and "));
        Finding::warning("independence", text).remedy("move each member to a host of its own")
    };
    on_host.into_iter().map(warning).collect()
}

/// Returns the hosts of a member, with one name for all addresses of this host.
fn hosts_of(url: &Url) -> Vec<String> {
    let local = || vec!["this host".to_owned()];
    if matches!(url.scheme(), "memory" | "file" | "redis+unix") {
        return local();
    }
    let Ok(authority) = url.authority(1) else { return Vec::new() };
    let host = |host: Host| {
        let name = host.name.to_ascii_lowercase();
        let is_local = name == "localhost"
            || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        if is_local { "this host".to_owned() } else { name }
    };
    authority.hosts.into_iter().map(host).collect()
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
    if !url.clone().take_all("polling_share")?.is_empty() {
        return Err(invalid(
            "the members of a quorum cannot share a lock with clients that poll: each would leave it \
             free at another time; leave out polling_share",
        ));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_on_one_host_are_found_by_their_urls() {
        let warnings = |urls: &[&str]| {
            let urls: Vec<_> = urls.iter().map(|url| Url::parse(url).unwrap()).collect();
            shared_hosts(&urls).into_iter().map(|finding| finding.text).collect::<Vec<_>>()
        };
        assert_eq!(warnings(&["redis://a", "redis://b", "zookeeper://c,d"]), [""; 0]);
        let text = "members 1 and 3 are on a: they fail together";
        assert_eq!(warnings(&["redis://u:secret@A:7", "redis://b", "zookeeper://c,a"]), [text]);
        let local = ["redis://localhost", "redis://127.0.0.1:7", "redis://[::1]", "file:///dir"];
        let text = "members 1 and 2 and 3 and 4 are on this host: they fail together";
        assert_eq!(warnings(&local), [text]);
        assert_eq!(warnings(&["redis+unix:///a", "redis+unix:///b"]).len(), 1);
        // One member that names a host twice is one member.
        assert_eq!(warnings(&["redis+cluster://a:1,a:2", "redis://b"]), [""; 0]);
    }
}
