//! Checks of what this user may do: commands, keys and channels, scripts, and messages.

use lock_core::backend::FaultKind;
use lock_core::diagnosis::Finding;
use lock_core::{Order, OwnerId};
use redis::{Cmd, Value as Answer};

use crate::diagnose::probe::{Probe, Seen};
use crate::fault;
use crate::keys::LockKeys;
use crate::scripts::DELETE_IF_EQUAL;
use crate::slots::hash_tag;

const SEE_RIGHTS: &str = "see the finding about rights";

/// A command that locks use, in a form that changes nothing.
struct Trial {
    right: &'static str,
    command: Cmd,
    /// The loss without it; `None` if no lock can do without it.
    spared: Option<&'static str>,
}

/// The rights that are missing.
#[derive(Default)]
struct Missing {
    rights: Vec<&'static str>,
    keys: bool,
    channels: bool,
    /// Commands that the server does not have.
    hidden: Vec<&'static str>,
}

/// The reason for the refusal of a command: the server hides it, or a user lacks a right.
#[derive(Clone, Copy)]
enum Refused {
    Hidden,
    Command,
    Keys,
    Channels,
}

/// Returns the findings about the rights of this user.
pub(crate) async fn check(probe: &Probe) -> Vec<Finding> {
    let listening = listen(probe).await;
    let rights = rights(probe, listening.as_ref().err()).await;
    let rights = rights.unwrap_or_else(|unseen| unseen.finding("rights"));
    let mut findings = vec![rights];
    findings.extend(scripts(probe).await);
    findings.push(channels(probe, listening.err()));
    findings.push(tracking(probe));
    findings
}

/// Tries each command, and names the rights that are missing.
async fn rights(probe: &Probe, deaf: Option<&String>) -> Seen<Finding> {
    let trials = trials(probe);
    let refused = refusals(probe, &trials).await?;
    let (mut missing, mut spared, mut needs_more) = (Missing::default(), Vec::new(), false);
    for (trial, refused) in trials.iter().zip(refused) {
        let Some(refused) = refused else { continue };
        needs_more |=
            trial.spared.is_none() || matches!(refused, Refused::Keys | Refused::Channels);
        spared.extend(trial.spared.filter(|without| !spared.contains(without)));
        missing.add(refused, trial.right);
    }
    // Subscribing is tried by connecting, which changes the connection.
    if let Some(refused) = deaf.and_then(|said| parse_refusal(said)) {
        needs_more = true;
        missing.add(refused, subscribe(probe));
    }
    let list = missing.list(probe);
    if list.is_empty() {
        return Ok(Finding::ok("rights", "this user may do everything that locks need"));
    }
    let remedy = match missing.rules(probe) {
        rules if rules.is_empty() => "use a server that does not hide them".to_owned(),
        rules => {
            let line = format!("ACL SETUSER {} {rules}", user(probe).await);
            match missing.wants_prefix(probe) {
                true => format!(
                    "add the option prefix to the URL, with the start of the keys that this user \
                     may use; or, which opens the keys of all users: {line}"
                ),
                false => line,
            }
        }
    };
    Ok(match needs_more {
        true => Finding::failure("rights", format!("locks need what is missing: {list}")),
        false => Finding::warning("rights", format!("without {list}, {}", spared.join("; "))),
    }
    .remedy(remedy))
}

/// Returns the commands that locks use.
fn trials(probe: &Probe) -> Vec<Trial> {
    let keys = probe.trial.clone().unwrap_or_else(|| probe.config().keys.for_trial(0));
    let mut trials = script_trials(&keys);
    if probe.wants_queue() {
        let publish = if probe.client().in_cluster { "spublish" } else { "publish" };
        trials.extend(queue_trials(&keys, &probe.config().keys.channel(""), publish));
    }
    if probe.client().in_cluster {
        trials.extend([
            needed("cluster|slots", &["CLUSTER", "SLOTS"]),
            needed("asking", &["ASKING"]),
        ]);
    }
    if probe.config().replicas.is_some() {
        trials.push(needed("wait", &["WAIT", "0", "1"]));
    }
    let info = "no quorum knows this server, and eviction is not noticed";
    let polls = "waiters behind foreign holders poll";
    trials.extend([
        wanted("info", &["INFO", "server"], info),
        wanted("client|tracking", &["CLIENT", "TRACKING", "ON", "OPTIN"], polls),
        wanted("client|caching", &["CLIENT", "CACHING", "YES"], polls),
    ]);
    if probe.may_fail_over() && !probe.client().in_cluster {
        let late = "a replica that Sentinels name is found out late";
        trials.push(wanted("role", &["ROLE"], late));
    }
    if probe.connection.deletes_if_equal() {
        let slow = "releases cost the server more";
        trials.push(wanted("delifeq", &[DELETE_IF_EQUAL, keys.lock(), "-"], slow));
    }
    trials
}

/// Returns the commands that any user of locks needs, most of them inside scripts.
fn script_trials(keys: &LockKeys) -> Vec<Trial> {
    let ([lock, token_key, ..], tombstone) = (keys.all(), keys.tombstone(&OwnerId::mint()));
    // No script has that name.
    let unknown = "0".repeat(40);
    vec![
        needed("script|load", &["SCRIPT", "LOAD", include_str!("../scripts/rights.lua")]),
        needed("evalsha", &["EVALSHA", &unknown, "1", lock]),
        needed("getrange", &["GETRANGE", lock, "0", "0"]),
        needed("exists", &["EXISTS", &tombstone]),
        needed("pttl", &["PTTL", lock]),
        needed("time", &["TIME"]),
        needed("set", &["SET", token_key, "", "XX"]),
        // The next two remove what this leaves.
        wanted(
            "incrby",
            &["INCRBY", &tombstone, "1"],
            "locks without contention cost the server more",
        ),
        needed("pexpire", &["PEXPIRE", &tombstone, "1"]),
        needed("del", &["DEL", &tombstone]),
    ]
}

/// Returns the commands for a queue.
fn queue_trials(keys: &LockKeys, channel: &str, publish: &'static str) -> Vec<Trial> {
    let [_, _, queue, processes, _] = keys.all();
    vec![
        needed("zadd", &["ZADD", queue, "XX", "1", ""]),
        needed("zrange", &["ZRANGE", queue, "0", "0"]),
        needed("zscore", &["ZSCORE", processes, ""]),
        needed("zcard", &["ZCARD", queue]),
        needed("zrem", &["ZREM", processes, ""]),
        needed("zremrangebyscore", &["ZREMRANGEBYSCORE", processes, "0", "0"]),
        needed(publish, &[publish, channel, ""]),
    ]
}

fn needed(right: &'static str, words: &[&str]) -> Trial {
    Trial { right, command: command(words), spared: None }
}

fn wanted(right: &'static str, words: &[&str], without: &'static str) -> Trial {
    Trial { right, command: command(words), spared: Some(without) }
}

fn command(words: &[&str]) -> Cmd {
    let mut command = Cmd::new();
    words.iter().for_each(|word| {
        command.arg(word);
    });
    command
}

/// Returns, for each command, the right that it was refused for. Asks the server where this user
/// may, which leaves no entries in its log of refusals, and else tries the commands.
async fn refusals(probe: &Probe, trials: &[Trial]) -> Seen<Vec<Option<Refused>>> {
    if let Some(refusals) = rehearse(probe, trials).await {
        return Ok(refusals);
    }
    let answers = probe.ask_all(trials.iter().map(|trial| &trial.command)).await?;
    let refusal = |answer: Result<Answer, _>| parse_refusal(&fault::message(&answer.err()?));
    Ok(answers.into_iter().map(refusal).collect())
}

/// Asks by `ACL DRYRUN` (Redis 7), for users with that right.
async fn rehearse(probe: &Probe, trials: &[Trial]) -> Option<Vec<Option<Refused>>> {
    let user = who(probe).await?;
    let dry = |trial: &Trial| {
        let mut dry = command(&["ACL", "DRYRUN", &user]);
        for arg in trial.command.args_iter() {
            if let redis::Arg::Simple(word) = arg {
                dry.arg(word);
            }
        }
        dry
    };
    let dry: Vec<_> = trials.iter().map(dry).collect();
    let answers = probe.ask_all(&dry).await.ok()?;
    let refusal = |answer: Result<Answer, _>| match answer {
        Ok(Answer::BulkString(said)) => Some(parse_refusal(&String::from_utf8_lossy(&said))),
        Ok(_) => Some(None),
        // Servers without the command, and hidden ones.
        Err(_) => None,
    };
    answers.into_iter().map(refusal).collect()
}

/// Reads the refusal of a command, by the server or by `ACL DRYRUN`.
fn parse_refusal(said: &str) -> Option<Refused> {
    if said.contains("unknown command") {
        return Some(Refused::Hidden);
    }
    if !said.contains("permissions") {
        return None;
    }
    // Names of keys and channels are quoted, and may hold any word.
    let said: String = said.split('\'').step_by(2).collect();
    Some(match () {
        () if said.contains("channel") => Refused::Channels,
        () if said.contains("key") => Refused::Keys,
        () => Refused::Command,
    })
}

impl Missing {
    fn add(&mut self, refused: Refused, right: &'static str) {
        match refused {
            Refused::Hidden => self.hidden.push(right),
            Refused::Command => self.rights.push(right),
            Refused::Keys => self.keys = true,
            Refused::Channels => self.channels = true,
        }
    }

    /// Returns all that is missing.
    fn list(&self, probe: &Probe) -> String {
        let hidden = match self.hidden.is_empty() {
            true => String::new(),
            false => format!("{} (hidden by the server)", self.hidden.join(" ")),
        };
        let shown = match self.wants_prefix(probe) {
            true => {
                let rights = self.rights.iter().map(|right| format!("+{right}"));
                let all = ["keys or channels of every name, as the URL has no prefix".to_owned()];
                rights.chain(all).collect::<Vec<_>>().join(" ")
            }
            false => self.rules(probe),
        };
        [shown, hidden].join(" ").trim().to_owned()
    }

    /// Returns true if a prefix in the URL may give what is missing.
    fn wants_prefix(&self, probe: &Probe) -> bool {
        (self.keys || self.channels) && probe.config().keys.prefix().is_empty()
    }

    /// Returns the rules that grant what is missing.
    fn rules(&self, probe: &Probe) -> String {
        let prefix = probe.config().keys.prefix();
        let mut rules: Vec<_> = self.rights.iter().map(|right| format!("+{right}")).collect();
        if self.keys {
            rules.push(format!("~{prefix}*"));
            if !prefix.is_empty() && hash_tag(prefix).is_none() {
                rules.push(format!("~{{{prefix}*"));
            }
        }
        if self.channels {
            rules.push(format!("&{prefix}*"));
        }
        rules.join(" ")
    }
}

/// Returns the name of this user at the server, for a rule.
async fn user(probe: &Probe) -> String {
    let configured = || probe.config().login.user.clone().unwrap_or_else(|| "default".to_owned());
    who(probe).await.unwrap_or_else(configured)
}

async fn who(probe: &Probe) -> Option<String> {
    probe.ask(&command(&["ACL", "WHOAMI"]), "ACL WHOAMI", "acl|whoami").await.ok()
}

fn subscribe(probe: &Probe) -> &'static str {
    if probe.client().in_cluster { "ssubscribe" } else { "subscribe" }
}

/// Runs the script that tries the commands inside scripts. A member of a cluster without keys of
/// the prefix runs none.
async fn scripts(probe: &Probe) -> Option<Finding> {
    let keys = probe.trial.as_ref()?;
    let queues = probe.wants_queue() && probe.no_queue.is_none();
    let fault = match probe.link.missing_in_scripts(&probe.connection, keys, queues).await {
        Ok(missing) if missing.is_empty() => {
            return Some(Finding::ok("scripts", "scripts are loaded and run"));
        }
        Ok(missing) => {
            let text = format!("scripts of this user may not call {}", missing.join(", "));
            return Some(Finding::failure("scripts", text).remedy(SEE_RIGHTS));
        }
        Err(fault) => fault,
    };
    let kind = fault.kind();
    let (cause, advice) = fault::cause_and_advice(fault);
    let finding = match kind {
        _ if probe.is_replica() => Finding::unseen("scripts", "it is a replica"),
        FaultKind::Denied | FaultKind::Unsupported | FaultKind::Unavailable => {
            Finding::failure("scripts", cause)
        }
        _ => Finding::unseen("scripts", cause),
    };
    Some(match advice {
        _ if probe.is_replica() => finding,
        _ if kind == FaultKind::Denied => finding.remedy(SEE_RIGHTS),
        Some(advice) => finding.remedy(advice),
        None => finding,
    })
}

/// Subscribes as waiters do. The error says why they cannot.
async fn listen(probe: &Probe) -> Result<(), String> {
    if let Some(why) = &probe.no_queue {
        return Err(why.clone());
    }
    let in_slot = probe.trial.as_ref().filter(|_| probe.client().in_cluster);
    match in_slot.filter(|_| probe.connection.has_channel) {
        Some(keys) => {
            let listening = probe.link.listen_in_time(&probe.connection, keys.slot()).await;
            listening.map_err(|fault| fault::cause_and_advice(fault).0)
        }
        None => Ok(()),
    }
}

fn channels(probe: &Probe, deaf: Option<String>) -> Finding {
    if !probe.wants_queue() {
        return Finding::ok("channels", "order=any: waiters race, and need no channel");
    }
    if let Some(why) = deaf {
        let prefix = probe.config().keys.prefix();
        let command = subscribe(probe);
        let remedy = format!(
            "grant +{command} and the channels &{prefix}* where the server has that command; or \
             connect with order=any"
        );
        return Finding::failure("channels", why).remedy(remedy);
    }
    if probe.connection.has_channel {
        let text = "RESP3 and channels: waiters are served in order, and woken by the release";
        return Finding::ok("channels", text);
    }
    let lacks = match probe.client().in_cluster {
        true => "the server has no channels in slots",
        false => "the server does not speak RESP3",
    };
    let text = format!("{lacks}: it cannot serve waiters in order, and they race");
    let remedy = "use Redis 6 or newer, 7 in a cluster, and do not hide HELLO";
    match probe.order {
        Some(Order::Fifo) => Finding::failure("channels", text)
            .remedy(format!("{remedy}; or connect with order=any")),
        _ => Finding::warning("channels", text).remedy(remedy),
    }
}

fn tracking(probe: &Probe) -> Finding {
    if probe.connection.has_signals {
        return Finding::ok("tracking", "the server tells waiters of changed keys");
    }
    let text = match probe.wants_queue() && probe.connection.has_channel {
        true => {
            "the server does not tell of changed keys: waiters behind holders of other \
                 libraries poll, and holders learn of a loss by their renewals alone"
        }
        false => "the server does not tell of changed keys: waiters poll",
    };
    Finding::warning("tracking", text)
        .remedy("grant +client|tracking +client|caching, and hide neither CLIENT nor HELLO (RESP3)")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::Config;

    #[test]
    fn all_commands_of_the_script_are_tried() {
        let source = include_str!("../scripts/rights.lua");
        let called = source.lines().filter_map(|line| line.trim().strip_prefix("try('"));
        let called = called.filter_map(|rest| Some(rest.split_once('\'')?.0.to_lowercase()));
        let keys = Config::new("redis://h").unwrap().keys.for_trial(0);
        let tried: BTreeSet<_> = script_trials(&keys)
            .into_iter()
            .chain(queue_trials(&keys, "", "publish"))
            .map(|trial| trial.right.to_owned())
            .collect();
        let called: BTreeSet<_> = called.collect();
        assert!(called.len() > 10);
        assert_eq!(called.difference(&tried).collect::<Vec<_>>(), [""; 0]);
    }

    #[test]
    fn refusals_are_told_apart() {
        for (said, is) in [
            ("NOPERM this user has no permissions to run the 'evalsha' command", "command"),
            ("User u has no permissions to run the 'client|tracking' command", "command"),
            ("unknown command 'CONFIG', with args", "hidden"),
            ("NOPERM No permissions to access a key", "keys"),
            ("User u has no permissions to access the 'my channel' key", "keys"),
            ("NOPERM No permissions to access a channel", "channels"),
            ("NOSCRIPT No matching script", "nothing"),
            ("READONLY You can't write against a read only replica.", "nothing"),
        ] {
            let found = match parse_refusal(said) {
                Some(Refused::Hidden) => "hidden",
                Some(Refused::Command) => "command",
                Some(Refused::Keys) => "keys",
                Some(Refused::Channels) => "channels",
                None => "nothing",
            };
            assert_eq!(found, is, "{said}");
        }
    }
}
