//! Counts of a run: the calls of each verb by clients, and the hits of holders by faults.

use std::collections::{BTreeMap, HashMap};

use lock_core::{Capabilities, Support};
use lock_history::{Kind, Line, Op, Trouble};

use crate::outcome::{REMOTE, Settings};
use crate::sites::{self, Site};
use crate::worker::can_detach;

/// The count of holders that were killed while they held the lock.
const KILLED: &str = "killed-holder";

/// The count of holders that were stopped beyond their last known deadline.
const STOPPED: &str = "stopped-beyond";

/// The number of grants for which each verb is called at least once.
const GRANTS: u64 = 1000;

/// Adds the hits of holders in the history to the counts of verbs by clients.
pub(crate) fn count(lines: &[Line], mut counts: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let heals: HashMap<u64, u64> = lines
        .iter()
        .filter_map(|line| if let Line::Heal(heal) = line { Some((heal.id, heal.t)) } else { None })
        .collect();
    // The client and the deadline of each grant that is held now.
    let mut held: HashMap<&str, (&str, u64)> = HashMap::new();
    for line in lines {
        match line {
            Line::Record(record) => {
                let Some(grant) = record.grant.as_deref() else { continue };
                let until = record.valid_until.unwrap_or(u64::MAX);
                if record.op.acquires() && record.kind == Kind::Ok {
                    if record.fence.is_some_and(|fence| fence & 0xff > 0) {
                        *counts.entry("handed-over".to_owned()).or_default() += 1;
                    }
                    held.insert(grant, (record.process.split('/').next().unwrap_or(""), until));
                } else if matches!(record.op, Op::Release | Op::Lost) {
                    held.remove(grant);
                } else if let (Some(known), Some(until)) = (held.get_mut(grant), record.valid_until)
                {
                    known.1 = known.1.max(until);
                }
            }
            Line::Fault(fault) => {
                let Some(host) = fault.process.as_deref() else { continue };
                let over = heals.get(&fault.id).copied().unwrap_or(u64::MAX);
                let of_host = held.values().filter(|(of, _)| *of == host);
                let (name, hit) = match fault.what {
                    Trouble::Kill => (KILLED, of_host.count()),
                    Trouble::Stop => (STOPPED, of_host.filter(|(_, until)| *until < over).count()),
                    _ => continue,
                };
                *counts.entry(name.to_owned()).or_default() += hit as u64;
            }
            _ => {}
        }
    }
    counts
}

/// Checks that `lockctl` can be a client of a run.
///
/// # Errors
///
/// It cannot. The text is the reason.
pub(crate) fn lockctl_support(backend: &str, site: &dyn Site) -> Result<(), &'static str> {
    let is_ours = sites::all().iter().any(|one| one.name == backend) || backend.starts_with(REMOTE);
    match (site.shared_backend(), is_ours) {
        (Some(_), _) => Err("the locks are in the memory of one process"),
        (None, false) => Err("lockctl does not know the backend"),
        (None, true) => Ok(()),
    }
}

/// A verb, and the reason if a run cannot call it.
type Verb = (&'static str, Result<(), &'static str>);

/// Lists the verbs that clients call, and the required hits of holders.
pub(crate) fn verbs(caps: &Capabilities, lockctl: Result<(), &'static str>) -> Vec<Verb> {
    let only_if = |yes: bool, reason| if yes { Ok(()) } else { Err(reason) };
    let detached =
        only_if(can_detach(caps), "a lock ends with its session: detaching is refused by design");
    let inspecting = only_if(caps.inspecting == Support::Present, "it cannot inspect");
    let listing = only_if(caps.listing == Support::Present, "it cannot list");
    let always = [
        "verify",
        "extend",
        "cancel",
        "outlast",
        "other-ttl",
        "longest-hold",
        "shortest-hold",
        KILLED,
    ];
    let of_detached = ["detach", "adopt", "renew-detached", "release-detached"];
    let mut verbs: Vec<Verb> = always.map(|verb| (verb, Ok(()))).into();
    verbs.extend([("inspect", inspecting), ("list", listing), ("lockctl-run", lockctl)]);
    verbs.extend(of_detached.map(|verb| (verb, detached)));
    verbs.extend(["lockctl-acquire", "lockctl-release"].map(|verb| (verb, lockctl.and(detached))));
    verbs
}

/// Lists the verbs that the backend does not support, with the reasons.
pub(crate) fn refused(verbs: &[Verb]) -> BTreeMap<String, String> {
    let refused = verbs.iter().filter_map(|(verb, support)| Some((*verb, support.err()?)));
    refused.map(|(verb, reason)| (verb.to_owned(), reason.to_owned())).collect()
}

/// Returns a failure for each verb or hit that a run of the default length had too rarely.
pub(crate) fn missing(
    counts: &BTreeMap<String, u64>,
    grants: u64,
    settings: &Settings,
    verbs: &[Verb],
) -> Vec<String> {
    let default = Settings::default();
    if settings.faults < default.faults || settings.grants < default.grants {
        return Vec::new();
    }
    // A run of selected kinds may kill no client.
    let is_required = |verb| verb != KILLED || settings.only.is_empty();
    let required = verbs.iter().filter(|(verb, support)| support.is_ok() && is_required(*verb));
    let rare = required.map(|(verb, _)| *verb).filter(|&verb| {
        let least = if verb == KILLED { 1 } else { grants / GRANTS };
        counts.get(verb).copied().unwrap_or(0) < least
    });
    let failures = rare.map(|verb| {
        let count = counts.get(verb).copied().unwrap_or(0);
        format!("minimum traffic: {verb} came {count} times in {grants} grants")
    });
    failures.collect()
}

/// Formats a rate per 1 000 grants.
pub(crate) fn rate(count: u64, grants: u64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "a rate needs no more than three digits")]
    let rate = 1000.0 * count as f64 / grants.max(1) as f64;
    format!("{rate:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_of_holders_are_counted() {
        let lines = [
            r#"{"kind":"invoke","t":1,"proc":"p1.1/t0","lock":"n01","op":"acquire","grant":"a"}"#,
            r#"{"kind":"ok","t":2,"proc":"p1.1/t0","lock":"n01","op":"acquire","grant":"a","valid_until":50}"#,
            r#"{"kind":"fault","t":10,"id":1,"what":"stop","proc":"p1.1"}"#,
            r#"{"kind":"heal","t":20,"id":1}"#,
            r#"{"kind":"fault","t":30,"id":2,"what":"stop","proc":"p1.1"}"#,
            r#"{"kind":"heal","t":60,"id":2}"#,
            r#"{"kind":"fault","t":61,"id":3,"what":"kill","proc":"p1.1"}"#,
            r#"{"kind":"fault","t":62,"id":4,"what":"kill","proc":"p2.1"}"#,
        ];
        let lines: Vec<Line> =
            lines.iter().map(|line| Line::parse(line.as_bytes()).unwrap()).collect();
        let counts = count(&lines, BTreeMap::from([("extend".to_owned(), 3)]));
        let expected = [("extend", 3), (KILLED, 1), (STOPPED, 1)];
        assert_eq!(counts, expected.map(|(name, count)| (name.to_owned(), count)).into());
    }

    #[test]
    fn a_run_that_never_calls_a_verb_fails() {
        let caps = *lock_core::Locker::new(lock_core::Memory::new()).capabilities();
        let verbs = verbs(&caps, Ok(()));
        let missing = missing(&BTreeMap::new(), 2000, &Settings::default(), &verbs);
        assert!(
            missing.contains(&"minimum traffic: extend came 0 times in 2000 grants".to_owned())
        );
        assert_eq!(missing.len(), 17, "{missing:?}");
    }

    /// Checks the table of draws for a backend that, like ZooKeeper, refuses detached locks.
    #[test]
    fn unsupported_verbs_have_a_reason() {
        let mut caps = *lock_core::Locker::new(lock_core::Memory::new()).capabilities();
        assert_eq!(refused(&verbs(&caps, Ok(()))), BTreeMap::new());
        caps.detached = Support::Absent;
        let refused = refused(&verbs(&caps, Ok(())));
        let names: Vec<&str> = refused.keys().map(String::as_str).collect();
        let of_detached = ["adopt", "detach", "lockctl-acquire", "lockctl-release"];
        assert_eq!(names, [&of_detached[..], &["release-detached", "renew-detached"]].concat());
        assert!(refused["detach"].contains("refused by design"), "{refused:?}");
        for (backend, is_client) in [("memory", false), ("file", true), ("another", false)] {
            let target = sites::all().iter().find(|one| one.name == backend);
            let site = (target.unwrap_or(&sites::all()[1]).start)();
            assert_eq!(lockctl_support(backend, &*site).is_ok(), is_client, "{backend}");
        }
    }
}
