//! `lockctl inspect` and `list`: the state of locks, unchanged.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::ops::ControlFlow;

use lock_any::backend::{Holder, Listed, LockState};
use lock_any::{LockName, Locker};
use serde::Serialize;

use crate::cli::{Inspect, List};
use crate::connect::{Capability, connect_for, connect_to_list, directory_of};
use crate::exit::{Exit, Failure};
use crate::output::{self, json, millis, print, rounded};

pub(crate) async fn inspect(url: &str, args: &Inspect) -> Result<Exit, Failure> {
    let name = args.name.get();
    let locks = connect_for("inspect", &[Capability::Inspecting], url).await?;
    let state = locks.inspect(name).await?;
    let directory = directory_of(url);
    print(&match args.json {
        true => json(&LockReport { directory, ..LockReport::of(name, &state, args.show_owner) })?,
        false => {
            text(name, &state, args.show_owner)
                + &directory.as_deref().map(directory_row).unwrap_or_default()
        }
    })?;
    Ok(match state.holders.is_empty() {
        true => Exit::NOTHING,
        false => Exit::SUCCESS,
    })
}

pub(crate) async fn list(url: &str, args: &List) -> Result<Exit, Failure> {
    let locks = connect_to_list(url).await?;
    if !args.json && std::io::stdout().is_terminal() {
        // On stderr, so that stdout has a line for each lock and no other.
        eprintln!("held locks{}", scope(&locks, url, &args.prefix));
    }
    for_each_page(&locks, &args.prefix, async |page| {
        let mut lines = String::new();
        for Listed { name, state, .. } in page {
            lines += &match args.json {
                true => json(&LockReport::of(name, state, false))?,
                false => line(name, state),
            };
        }
        output::print_more(&lines)
    })
    .await?;
    Ok(Exit::SUCCESS)
}

/// Returns which locks a list shows, to be appended to a heading.
pub(crate) fn scope(locks: &Locker, url: &str, prefix: &str) -> String {
    let capabilities = locks.capabilities();
    if !prefix.is_empty() {
        return format!(" with names that begin with {prefix:?}");
    }
    match (capabilities.backend, lock_any::prefix_of(url)) {
        // Other strings of an application are no locks, and the server cannot tell them apart.
        ("redis", None) => " by this library; for those of others, give a prefix".to_owned(),
        _ => String::new(),
    }
}

/// Shows all locks, sorted by name, until `show` stops. One page at a time, because there may be
/// millions. Pages grow, because each may cost a scan over all keys of a server.
pub(crate) async fn for_each_page(
    locks: &Locker,
    prefix: &str,
    mut show: impl AsyncFnMut(&[Listed]) -> Result<ControlFlow<()>, Failure>,
) -> Result<(), Failure> {
    const FIRST: usize = 500;
    const LONGEST: usize = 128_000;
    let (mut last, mut limit): (Option<LockName>, _) = (None, FIRST);
    loop {
        let page = locks.list(prefix, last.as_ref(), limit).await?;
        let Some(end) = page.last() else { return Ok(()) };
        if last.as_ref().is_some_and(|last| end.name <= *last) {
            let message = "the backend lists the same locks again and again; please report it";
            return Err(Failure::new(Exit::INTERNAL, message));
        }
        last = Some(end.name.clone());
        if show(&page).await?.is_break() || page.len() < limit {
            return Ok(());
        }
        limit = LONGEST.min(limit * 4);
    }
}

/// The JSON of a lock.
#[derive(Serialize)]
struct LockReport<'a> {
    name: &'a str,
    held: bool,
    holders: Vec<HolderReport<'a>>,
    waiting: Option<u64>,
    /// The key on the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    /// The directory of lock files.
    #[serde(skip_serializing_if = "Option::is_none")]
    directory: Option<String>,
    /// The members of a quorum.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    members: Vec<MemberReport<'a>>,
}

#[derive(Serialize)]
struct MemberReport<'a> {
    member: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    holders: Option<Vec<HolderReport<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<&'a str>,
}

#[derive(Serialize)]
pub(crate) struct HolderReport<'a> {
    owner_short: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    label: Option<&'a str>,
    held_for_ms: Option<u64>,
    expires_in_ms: Option<u64>,
    /// A string, because readers of JSON round numbers.
    fencing_token: Option<String>,
}

impl<'a> LockReport<'a> {
    fn of(name: &'a LockName, state: &'a LockState, show_owner: bool) -> Self {
        let reports = |holders: &'a [Holder]| -> Vec<_> {
            holders.iter().map(|holder| HolderReport::of(holder, show_owner)).collect()
        };
        let members = state.members.iter().map(|member| MemberReport {
            member: &member.name,
            holders: member.holders.as_deref().ok().map(reports),
            fault: member.holders.as_ref().err().map(String::as_str),
        });
        Self {
            name: name.as_str(),
            held: !state.holders.is_empty(),
            holders: reports(&state.holders),
            waiting: state.waiting,
            key: state.key.as_deref(),
            directory: None,
            members: members.collect(),
        }
    }
}

impl<'a> HolderReport<'a> {
    pub(crate) fn of(holder: &'a Holder, show_owner: bool) -> Self {
        Self {
            owner_short: holder.owner.map(|owner| owner.short()),
            owner: holder.owner.filter(|_| show_owner).map(|owner| owner.expose()),
            label: holder.label.as_ref().map(lock_any::Label::as_str),
            held_for_ms: holder.held_for.map(millis),
            expires_in_ms: holder.expires_in.map(millis),
            fencing_token: holder.token.map(|token| token.to_string()),
        }
    }
}

/// Returns a lock as text for people.
fn text(name: &LockName, state: &LockState, show_owner: bool) -> String {
    let held = if state.holders.is_empty() { "free" } else { "held" };
    let mut text = format!("lock {name} is {held}\n");
    let mut row = |title: &str, value: Option<String>| {
        if let Some(value) = value {
            let _ = writeln!(text, "  {title:<8} {value}");
        }
    };
    for holder in &state.holders {
        row("holder", Some(describe(holder, show_owner)));
        row("since", holder.held_for.map(|span| format!("{} ago", rounded(span))));
        let expires = holder.expires_in.map(|span| format!("in {} unless renewed", rounded(span)));
        row("expires", expires);
        row("token", holder.token.map(|token| token.to_string()));
    }
    row("waiting", state.waiting.map(|waiting| waiting.to_string()));
    row("key", state.key.as_deref().map(|key| describe_key(name, key)));
    for member in &state.members {
        let view = match &member.holders {
            Ok(holders) if holders.is_empty() => "free".to_owned(),
            Ok(holders) => {
                holders.iter().map(|h| describe(h, show_owner)).collect::<Vec<_>>().join("; ")
            }
            Err(fault) => format!("no answer: {fault}"),
        };
        let _ = writeln!(text, "  {}: {view}", member.name);
    }
    text
}

/// Returns the key under which clients of other libraries find the lock, as text for people.
pub(crate) fn describe_key(name: &LockName, key: &str) -> String {
    let note = if key.ends_with(name.as_str()) { "" } else { " (the name is encoded)" };
    // A prefix may contain any character.
    format!("{}{note}", key.escape_debug())
}

fn directory_row(directory: &str) -> String {
    format!("  {:<8} {}\n", "in", directory.escape_debug())
}

fn line(name: &LockName, state: &LockState) -> String {
    let holders = state.holders.iter().map(|holder| {
        let since = holder.held_for.map(|span| format!(", for {}", rounded(span)));
        let expires = holder.expires_in.map(|span| format!(", expires in {}", rounded(span)));
        format!(
            "{}{}{}",
            describe(holder, false),
            since.unwrap_or_default(),
            expires.unwrap_or_default()
        )
    });
    let holders: Vec<_> = holders.collect();
    format!("{name}\t{}\n", holders.join("; "))
}

/// Returns the label of a holder, and the part of its owner id that gives no right.
pub(crate) fn describe(holder: &Holder, show_owner: bool) -> String {
    let owner = match holder.owner {
        None => "a client without an owner id".to_owned(),
        Some(owner) if show_owner => owner.expose(),
        Some(owner) => format!("{}…", owner.short()),
    };
    match &holder.label {
        // Another client has written it: it may contain terminal escapes.
        Some(label) => format!("{} ({owner})", label.as_str().escape_debug()),
        None => owner,
    }
}

#[cfg(test)]
mod tests {
    use lock_any::Memory;

    use super::*;

    #[tokio::test]
    async fn list_shows_each_lock_once() {
        let locks = Locker::new(Memory::new());
        let mut guards = Vec::new();
        for number in 0..1234 {
            let name = format!("jobs/{number:04}");
            guards.push(locks.lock(name.as_str()).unwrap().acquire().await.unwrap());
        }
        guards.push(locks.lock("other").unwrap().acquire().await.unwrap());
        let (mut seen, mut pages) = (Vec::new(), 0);
        let shown = for_each_page(&locks, "jobs/", async |page| {
            seen.extend(page.iter().map(|listed| listed.name.as_str().to_owned()));
            pages += 1;
            Ok(ControlFlow::Continue(()))
        });
        assert!(shown.await.is_ok());
        let expected: Vec<_> = (0..1234).map(|number| format!("jobs/{number:04}")).collect();
        assert_eq!((seen, pages), (expected, 2));
        assert!(guards.iter().all(lock_any::LockGuard::is_held), "listing ends no hold");
    }

    #[tokio::test]
    async fn list_stops_when_the_reader_stops() {
        let locks = Locker::new(Memory::new());
        let mut guards = Vec::new();
        for number in 0..1234 {
            guards.push(locks.lock(format!("{number}")).unwrap().acquire().await.unwrap());
        }
        let mut pages = 0;
        let shown = for_each_page(&locks, "", async |_| {
            pages += 1;
            Ok(ControlFlow::Break(()))
        });
        assert!(shown.await.is_ok());
        assert_eq!(pages, 1);
    }

    #[tokio::test]
    async fn a_list_line_shows_the_holder_but_not_its_owner_id() {
        let builder = Locker::builder(Memory::new()).label(lock_any::Label::new("web1:4711"));
        let locks = builder.build();
        let guard = locks.lock("a \"b\"").unwrap().acquire().await.unwrap();
        let state = locks.inspect(guard.name()).await.unwrap();
        let line = line(guard.name(), &state);
        let owner = guard.owner().short();
        assert!(
            line.starts_with(&format!("\"a \\\"b\\\"\"\tweb1:4711 ({owner}…), for ")),
            "{line}"
        );
        assert!(line.contains(", expires in 2") && line.ends_with('\n'), "{line}");
        let json = json(&LockReport::of(guard.name(), &state, false)).unwrap();
        assert!(!json.contains(&guard.owner().expose()[..9]), "{json}");
    }

    #[tokio::test]
    async fn inspect_shows_known_fields_only() {
        let locks = Locker::new(Memory::new());
        let guard = locks.lock("n").unwrap().acquire().await.unwrap();
        let mut state = locks.inspect(guard.name()).await.unwrap();
        state.waiting = Some(3);
        let titles = |text: &str| {
            let rows = text.lines().skip(1).map(|row| row.split_whitespace().next().unwrap());
            rows.map(str::to_owned).collect::<Vec<_>>()
        };
        let all = text(guard.name(), &state, false);
        assert_eq!(titles(&all), ["holder", "since", "expires", "token", "waiting"], "{all}");
        assert!(all.ends_with("waiting  3\n"), "{all}");

        state.waiting = None;
        state.holders[0].expires_in = None;
        assert_eq!(titles(&text(guard.name(), &state, false)), ["holder", "since", "token"]);
        state.holders[0].owner = None;
        assert!(text(guard.name(), &state, true).contains("without an owner id"));
        state.holders.clear();
        assert_eq!(text(guard.name(), &state, true), "lock \"n\" is free\n");
    }
}
