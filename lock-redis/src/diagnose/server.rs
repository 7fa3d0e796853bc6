//! Checks of a server's state and settings.

use lock_core::diagnosis::Finding;

use crate::diagnose::probe::{Probe, Seen, Unseen};

/// The share of `maxmemory` in percent from which its end is near.
const NEARLY_FULL: u64 = 90;

/// The share of `maxclients` in percent above which its end is near.
const NEARLY_ALL_OPEN: u64 = 80;

/// The lag in seconds above which a replica is not online, unless `min-replicas-max-lag` is set:
/// its default.
const USUAL_LAG: u64 = 10;

/// Returns the findings about the state and the settings of a server.
pub(crate) fn check(probe: &Probe) -> Vec<Finding> {
    let checks: [(&'static str, Seen<Finding>); 8] = [
        ("version", version(probe)),
        ("mode", mode(probe)),
        ("role", role(probe)),
        ("eviction", eviction(probe)),
        ("persistence", persistence(probe)),
        ("replicas", replicas(probe)),
        ("connections", connections(probe)),
        ("idle", idle(probe)),
    ];
    let found = |(check, seen): (&'static str, Seen<Finding>)| {
        seen.unwrap_or_else(|unseen| unseen.finding(check))
    };
    checks.into_iter().map(found).collect()
}

fn version(probe: &Probe) -> Seen<Finding> {
    let valkey = probe.info("server")?.get("valkey_version");
    let version = valkey.map_or_else(|| probe.field("server", "redis_version"), Ok)?;
    let name = if valkey.is_some() { "Valkey" } else { "Redis" };
    Ok(version_of(name, version, probe.wants_queue(), probe.client().in_cluster))
}

fn version_of(name: &str, version: &str, queues: bool, in_cluster: bool) -> Finding {
    const CHECK: &str = "version";

    let text = format!("{name} {version}");
    let too_old = "use Redis 6 or newer";
    match version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0_u32) {
        0 => Finding::unseen(CHECK, text),
        1..=4 => Finding::failure(CHECK, format!("{text} is too old for locks")).remedy(too_old),
        5 if queues => {
            let why = format!("{text} sends no messages: waiters race, and poll");
            Finding::warning(CHECK, why).remedy(too_old)
        }
        6 if queues && in_cluster => {
            let why = format!("{text} has no channels in slots: waiters of this cluster race");
            Finding::warning(CHECK, why).remedy("use Redis 7 or newer")
        }
        9.. if name == "Valkey" => {
            Finding::ok(CHECK, format!("{text}, which releases locks without a script"))
        }
        _ => Finding::ok(CHECK, text),
    }
}

fn mode(probe: &Probe) -> Seen<Finding> {
    let in_cluster = probe.client().in_cluster;
    if let Some(why) = probe.info("server")?.wrong_mode(in_cluster) {
        let (what, remedy) = why.split_once(": ").unwrap_or((why, "correct the URL"));
        return Ok(Finding::failure("mode", what).remedy(remedy));
    }
    let kind = if in_cluster { "a member of a cluster" } else { "a server of its own" };
    Ok(Finding::ok("mode", format!("{kind}, as the URL says")))
}

fn role(probe: &Probe) -> Seen<Finding> {
    if probe.field("replication", "role")? == "master" {
        return Ok(Finding::ok("role", "it is a primary"));
    }
    let known = |name| probe.field("replication", name).unwrap_or("?");
    let primary = format!("{}:{}", known("master_host"), known("master_port"));
    let text = match known("slave_read_only") {
        "0" => "it is a writable replica: it grants locks that no other server knows",
        _ => "it is a replica, and refuses to grant locks",
    };
    Ok(Finding::failure("role", text).remedy(format!("name its primary {primary}, or Sentinels")))
}

fn eviction(probe: &Probe) -> Seen<Finding> {
    let policy = probe.field("memory", "maxmemory_policy")?;
    let (limit, used) =
        (probe.number("memory", "maxmemory")?, probe.number("memory", "used_memory")?);
    let share = used.saturating_mul(100).checked_div(limit);
    if policy != "noeviction" {
        let when = match share {
            Some(share) => format!("{share} % of the memory limit is used"),
            None => "no memory limit is set now".to_owned(),
        };
        let text = format!(
            "maxmemory-policy is {policy}, and keys of locks have expiries: at its memory limit the \
             server removes held locks; {when}"
        );
        return Ok(Finding::warning("eviction", text).remedy("set maxmemory-policy to noeviction"));
    }
    Ok(match share {
        Some(share @ NEARLY_FULL..) => {
            let text = format!(
                "{share} % of the memory limit is used: at the limit no free lock is granted"
            );
            Finding::warning("eviction", text).remedy("raise maxmemory, or remove data")
        }
        Some(share) => {
            let text = format!("no key is evicted; {share} % of the memory limit is used");
            Finding::ok("eviction", text)
        }
        None => Finding::ok("eviction", "no key is evicted; there is no memory limit"),
    })
}

fn persistence(probe: &Probe) -> Seen<Finding> {
    let state = probe.info("persistence")?;
    for (last, what) in
        [("aof_last_write_status", "its log"), ("rdb_last_bgsave_status", "its snapshot")]
    {
        if state.get(last) == Some("err") {
            let text = format!("it could not write {what}, and may refuse to grant locks");
            return Ok(Finding::warning("persistence", text).remedy("look at its log and its disk"));
        }
    }
    let loses = |text: &str, remedy: &str| {
        let text = format!("{text}, and two holders are possible until the first one renews");
        Ok(Finding::warning("persistence", text).remedy(remedy))
    };
    let always = "set appendonly yes and appendfsync always, or use a quorum: URL";
    if probe.number("persistence", "aof_enabled")? == 0 {
        return match probe.setting("save") {
            Ok("") => loses("no data are kept: a restart frees all locks", always),
            Ok(_) => {
                loses("only snapshots are kept: a restart frees the locks since the last", always)
            }
            // The worse of the two.
            Err(_) => loses("no log is kept: a restart frees locks, perhaps all", always),
        };
    }
    match probe.setting("appendfsync")? {
        "always" if probe.setting("no-appendfsync-on-rewrite")? == "yes" => {
            let text = "no-appendfsync-on-rewrite is yes: while it rewrites its log or writes a \
                        snapshot, a power failure frees recent locks";
            loses(text, "set no-appendfsync-on-rewrite to no")
        }
        "always" => Ok(Finding::ok("persistence", "each grant is on disk before it is answered")),
        "everysec" => {
            loses("appendfsync is everysec: a power failure frees the locks of a second", always)
        }
        other => {
            let text = format!("appendfsync is {other}: a power failure frees recent locks");
            loses(&text, always)
        }
    }
}

fn replicas(probe: &Probe) -> Seen<Finding> {
    let state = probe.info("replication")?;
    let limit = match probe.setting("min-replicas-max-lag").map(str::parse) {
        Ok(Ok(limit @ 1..)) => limit,
        _ => USUAL_LAG,
    };
    let is_online = |line: &&str| line.starts_with("slave") && line.contains("state=online");
    let online: Vec<_> = state.0.lines().filter(is_online).collect();
    let lagging = online.iter().filter(|line| lag(line) > limit).count() as u64;
    let online = online.len() as u64 - lagging;
    let good = state.get("min_slaves_good_slaves").and_then(|good| good.parse::<u64>().ok());
    // Without a minimum the server does not count them.
    let minimum = match good {
        None => 0,
        Some(_) => probe.setting("min-replicas-to-write").map_or(1, |n| n.parse().unwrap_or(1)),
    };
    let there = match lagging {
        0 => format!("replicas online: {online}"),
        _ => format!("replicas online: {online} ({lagging} more lags by over {limit} s)"),
    };
    if good.is_some_and(|good| good < minimum) {
        let text = format!("{there}, and min-replicas-to-write is {minimum}: no lock is granted");
        return Ok(Finding::failure("replicas", text).remedy("look at the replicas"));
    }
    if let Some(wanted) = probe.config().replicas.map(|min_replicas| u64::from(min_replicas.count))
    {
        return Ok(match online < wanted {
            true => {
                let text = format!("{there}, and min_replicas is {wanted}: no lock is granted");
                Finding::failure("replicas", text).remedy("start replicas, or lower min_replicas")
            }
            false => Finding::ok("replicas", format!("{there}, and min_replicas is {wanted}")),
        });
    }
    Ok(match (online, probe.may_fail_over()) {
        (0, _) if lagging > 0 => {
            let text = format!("{there}: a failover loses the locks of that time");
            Finding::warning("replicas", text).remedy("look at the replicas and the network")
        }
        (0, false) => Finding::ok("replicas", "it has none, so no failover loses locks"),
        (0, true) => {
            let text = "it has none: if it fails, its locks wait for its return";
            Finding::warning("replicas", text).remedy("add a replica")
        }
        _ if minimum > 0 => {
            let text = format!(
                "{there}, and min-replicas-to-write is {minimum}: a failover loses recent locks, \
                 and a primary without replicas grants none"
            );
            Finding::warning("replicas", text).remedy("add min_replicas=1 to the URL")
        }
        _ => {
            let text = format!("{there}; replication lags, so a failover may lose recent locks");
            Finding::warning("replicas", text).remedy(
                "add min_replicas=1 to the URL, or set min-replicas-to-write to 1 on the server",
            )
        }
    })
}

/// Returns the seconds since a replica acknowledged data last, as its line in `INFO` says.
fn lag(line: &str) -> u64 {
    let lag = line.split(',').find_map(|field| field.strip_prefix("lag="));
    lag.and_then(|lag| lag.trim().parse().ok()).unwrap_or(0)
}

fn connections(probe: &Probe) -> Seen<Finding> {
    let open = probe.number("clients", "connected_clients")?;
    // Redis 6.0 has it among the settings only.
    let limit = probe.number("clients", "maxclients").or_else(|_| {
        let limit = probe.setting("maxclients")?;
        limit.parse().map_err(|_| Unseen::new("the setting maxclients is no number"))
    })?;
    let refused = probe.number("stats", "rejected_connections")?;
    let text = format!("{open} of {limit} connections are open");
    let remedy = "raise maxclients, and the limit of open files with it";
    if refused > 0 {
        let text = format!("{text}; {refused} were refused since the start or CONFIG RESETSTAT");
        return Ok(Finding::warning("connections", text).remedy(remedy));
    }
    Ok(match open.saturating_mul(100).checked_div(limit) {
        Some(share) if share > NEARLY_ALL_OPEN => {
            let text = format!("{text}: at the limit no client can connect");
            Finding::warning("connections", text).remedy(remedy)
        }
        _ => Finding::ok("connections", text),
    })
}

fn idle(probe: &Probe) -> Seen<Finding> {
    let timeout = probe.setting("timeout")?;
    if timeout != "0" {
        let text = format!(
            "it closes connections that are idle for {timeout} s: each costs waiters a poll, and \
             the next request a new connection"
        );
        return Ok(Finding::warning("idle", text).remedy("set timeout to 0"));
    }
    if probe.setting("tcp-keepalive")? == "0" {
        let text = "tcp-keepalive is 0: processes of a host that vanished keep their positions, \
                    and each may cost a claim lease";
        return Ok(Finding::warning("idle", text).remedy("set tcp-keepalive to 300 or less"));
    }
    Ok(Finding::ok("idle", "idle connections stay open, and dead ones are noticed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::diagnosis::Severity::{Failure, Ok, Warning};

    #[test]
    fn old_versions_are_judged_by_their_use() {
        for (name, version, queues, in_cluster, severity) in [
            ("Redis", "4.0.14", false, false, Failure),
            ("Redis", "5.0.14", true, false, Warning),
            ("Redis", "5.0.14", false, false, Ok),
            ("Redis", "6.2.14", true, false, Ok),
            ("Redis", "6.2.14", true, true, Warning),
            ("Redis", "6.2.14", false, true, Ok),
            ("Redis", "7.0.15", true, true, Ok),
            ("Valkey", "9.0.1", true, true, Ok),
            ("Redis", "unstable", true, false, Warning),
        ] {
            let finding = version_of(name, version, queues, in_cluster);
            assert_eq!(finding.severity, severity, "{finding}");
            assert!(finding.text.contains(version), "{finding}");
        }
    }
}
