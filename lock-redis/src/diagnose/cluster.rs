//! Checks of a cluster: its slots, and each primary.

use std::error::Error as _;
use std::sync::Arc;

use lock_core::diagnosis::Finding;
use lock_core::url::Host;
use lock_core::{Error, ErrorKind, Order};

use crate::config::Config;
use crate::connection::client_state::ClientState;
use crate::diagnose::primary;
use crate::diagnose::probe::{Probe, Seen, unusable};
use crate::keys::LockKeys;
use crate::topology::cluster::{Cluster, MAX_TRIALS, SlotMap};
use crate::topology::link::Link;
use crate::topology::servers::all;

/// How many ranges of slots a finding names.
const SHOWN: usize = 5;

/// A primary, with keys of a trial if it has a slot of one.
type Primary = (Host, Option<LockKeys>);

/// Checks the cluster, and then each primary.
pub(crate) async fn check(config: &Config) -> Vec<Finding> {
    // Less can go wrong without messages, which each primary is asked for by itself.
    let plain = config.clone().order(Order::PerProcess);
    let cluster = Cluster::new(plain.clone(), Arc::new(ClientState::new(&plain)));
    if let Err(error) = cluster.first_connection().await {
        return vec![no_map(&error)];
    }
    let (slots, primaries) = {
        let map = cluster.map();
        (slots(&map), primaries(config, &map))
    };
    let client = Arc::new(ClientState::new(config));
    let checking = primaries.iter().map(|it| check_primary(config, &client, it));
    let checked = all(checking.map(Box::pin)).await;
    let mut findings = vec![slots];
    findings.extend(members(config, &primaries).await);
    if let Some(probe) = checked.iter().find_map(|(probe, _)| probe.as_ref()) {
        findings.push(state(probe).await.unwrap_or_else(|unseen| unseen.finding("cluster")));
    }
    findings.extend(checked.into_iter().flat_map(|(_, of_it)| of_it));
    findings
}

async fn check_primary(
    config: &Config,
    client: &Arc<ClientState>,
    (host, trial): &Primary,
) -> (Option<Probe>, Vec<Finding>) {
    let name = host.to_string();
    let (probe, findings) =
        match Probe::open(&config.at_member(host.clone()), client, trial.clone()).await {
            Ok(probe) => {
                let findings = primary::check(&probe).await;
                (Some(probe), findings)
            }
            Err(fault) => (None, vec![unusable(fault)]),
        };
    (probe, findings.into_iter().map(|finding| finding.of_server(&*name)).collect())
}

fn primaries(config: &Config, map: &SlotMap) -> Vec<Primary> {
    let trials: Vec<_> = (0..MAX_TRIALS).map(|number| config.keys.for_trial(number)).collect();
    let primary = |(index, host): (usize, &Host)| {
        let has = |slot: u16| map.masters.get(usize::from(slot)) == Some(&Some(index));
        let trial = trials.iter().find(|keys| has(keys.slot())).cloned();
        map.masters.contains(&Some(index)).then(|| (host.clone(), trial))
    };
    map.members.iter().map(|member| &member.host).enumerate().filter_map(primary).collect()
}

/// Returns the finding about slots without a primary.
fn slots(map: &SlotMap) -> Finding {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for (slot, _) in map.masters.iter().enumerate().filter(|(_, master)| master.is_none()) {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == slot => *last = slot,
            _ => ranges.push((slot, slot)),
        }
    }
    if ranges.is_empty() {
        return Finding::ok("slots", "each slot has a primary");
    }
    let shown: Vec<_> =
        ranges.iter().take(SHOWN).map(|(first, last)| format!("{first}-{last}")).collect();
    let more = if ranges.len() > SHOWN { ", …" } else { "" };
    let text = format!(
        "no primary has the slots {}{more}: no lock in them is granted, and no other lock either \
         where cluster-require-full-coverage is yes, the default",
        shown.join(", ")
    );
    Finding::failure("slots", text).remedy("run redis-cli --cluster fix, or start the member")
}

/// Returns the finding about the state of the cluster, as a member sees it.
async fn state(probe: &Probe) -> Seen<Finding> {
    let mut command = redis::cmd("CLUSTER");
    let text: String = probe.ask(command.arg("INFO"), "CLUSTER INFO", "cluster|info").await?;
    let get = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.map_or("?", str::trim)
    };
    let failing = get("cluster_slots_fail");
    Ok(match (get("cluster_state"), failing) {
        ("ok", "0" | "?") => Finding::ok("cluster", "the cluster is whole"),
        ("ok", _) => {
            let text = format!("the primaries of {failing} slots fail: their locks wait");
            Finding::warning("cluster", text).remedy("look at CLUSTER NODES")
        }
        (state, _) => {
            let text = format!("the state of the cluster is {state}: no lock is granted");
            Finding::failure("cluster", text).remedy("look at CLUSTER NODES")
        }
    })
}

/// Returns findings about members in the URL that do not answer, and are checked nowhere else.
async fn members(config: &Config, primaries: &[Primary]) -> Vec<Finding> {
    let is_primary = |host: &&Host| primaries.iter().any(|(primary, _)| primary == *host);
    let others = config.members.iter().filter(|host| !is_primary(host));
    let asking = others.map(|host| async move {
        let config = config.at_member(host.clone()).order(Order::PerProcess);
        let client = Arc::new(ClientState::new(&config));
        let fault = Arc::new(Link::new(config, client)).connect_in_time().await.err()?;
        let cause = unusable(fault).text;
        let text = format!("a member in the URL cannot be used: {cause}");
        let remedy = "start it, or remove it from the URL";
        Some(Finding::warning("members", text).remedy(remedy).of_server(host.to_string()))
    });
    all(asking).await.into_iter().flatten().collect()
}

/// Returns the finding that no member has shown the slots.
fn no_map(error: &Error) -> Finding {
    let text = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    match error.kind() {
        ErrorKind::Denied if text.contains("permissions") => {
            Finding::failure("rights", text).remedy("grant +cluster|slots")
        }
        ErrorKind::Denied => Finding::failure("login", text),
        ErrorKind::Unsupported => Finding::failure("mode", text),
        _ => Finding::failure("connection", text)
            .remedy("check that the members run, and that the URL has their addresses"),
    }
}
