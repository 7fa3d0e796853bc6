//! Checks of an ensemble: the guarantees of its members for locks, and the limits of these.

mod commits;
mod ensemble;
mod limits;
mod member;
mod nodes;
mod rights;
mod role;
mod words;

use lock_core::diagnosis::Finding;
use lock_core::{Executor, OwnerId};

use self::member::{Member, survey};
use crate::config::Config;

/// Checks each member of the URL, the ensemble, and the nodes below the prefix.
///
/// Writes one ephemeral node of its own below the prefix, and removes it. All other writes belong
/// to transactions that fail on purpose. Members that do not answer delay it by some seconds.
///
/// # Cancel safety
///
/// Dropping the future closes its sessions, and its node ends with them.
pub async fn diagnose(config: &Config) -> Vec<Finding> {
    match Executor::current_or_new() {
        Ok(executor) => executor.within(check(config)).await,
        Err(error) => vec![Finding::failure("connection", error.to_string())],
    }
}

async fn check(config: &Config) -> Vec<Finding> {
    let members = survey(config).await;
    let mut findings = member::connections(config, &members);
    for member in &members {
        findings.extend(role::check(member, is_serving(&members)));
    }
    let serving: Vec<&Member> = members.iter().filter(|member| member.session.is_ok()).collect();
    if let Some(&first) = serving.first() {
        let own_name = format!("lockctl-doctor-{}", OwnerId::mint().expose());
        findings.extend(limits::check(config, &serving).await);
        findings.extend(commits::check(&serving).await);
        findings.extend(ensemble::check(config, &members, &serving, &own_name).await);
        findings.extend(rights::check(config, first, &own_name).await);
        findings.extend(nodes::check(config, first).await);
    }
    for member in members {
        member.close().await;
    }
    findings
}

fn is_serving(members: &[Member]) -> bool {
    members.iter().any(|member| member.session.is_ok())
}
