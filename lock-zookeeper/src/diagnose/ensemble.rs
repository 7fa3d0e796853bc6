//! The ensemble: its members, and whether the URL names one ensemble only.

use lock_core::diagnosis::Finding;
use zookeeper_client::{Client, CreateMode, Error as ZkError};

use super::member::Member;
use super::rights::directories;
use super::words::NoAnswer;
use crate::config::Config;
use crate::fault::fault;
use crate::session::acls_of;
use crate::session::manager::check_is_global;

/// Returns the findings about all members together.
pub(super) async fn check(
    config: &Config,
    members: &[Member],
    serving: &[&Member],
    own_name: &str,
) -> Vec<Finding> {
    let Some(client) = serving.first().and_then(|first| first.client()) else {
        return Vec::new();
    };
    let mut findings = vec![local_sessions(client).await];
    findings.extend(size(client, members, serving).await);
    if serving.len() > 1 {
        findings.push(is_one(config, serving, own_name).await);
    }
    findings
}

async fn local_sessions(client: &Client) -> Finding {
    match check_is_global(client).await {
        Ok(()) => Finding::ok("local sessions", "the members know the sessions of each other"),
        Err(error) => Finding::failure("local sessions", error.to_string())
            .remedy("set localSessionsUpgradingEnabled=true, or localSessionsEnabled=false"),
    }
}

/// Returns the findings about the number of members.
async fn size(client: &Client, members: &[Member], serving: &[&Member]) -> Vec<Finding> {
    if serving.iter().any(|member| member.mode() == Some("standalone")) {
        return vec![standalone()];
    }
    let configured = match client.get_config().await {
        Ok((text, _)) => Configured::parse(&String::from_utf8_lossy(&text)),
        Err(error) => {
            let why = fault("reading /zookeeper/config", &error).into_source();
            return vec![NoAnswer::new(why.to_string()).unseen("ensemble")];
        }
    };
    match configured {
        // A server alone has no configuration to show.
        Configured { voters: 0, .. } => vec![match serving[0].srvr.as_ref() {
            Err(no_answer) => no_answer.unseen("ensemble"),
            Ok(_) => NoAnswer::new("/zookeeper/config names no members").unseen("ensemble"),
        }],
        Configured { voters: 1, observers: 0 } => vec![standalone()],
        configured => vec![configured.voters(), configured.named(members.len())],
    }
}

fn standalone() -> Finding {
    Finding::warning("ensemble", "one server alone: without it no lock is granted or kept")
        .remedy("run an ensemble of three or five servers")
}

/// The numbers of members in the configuration of an ensemble.
#[derive(Debug, PartialEq, Eq)]
struct Configured {
    voters: usize,
    observers: usize,
}

impl Configured {
    /// Counts the lines `server.<id>=<host>:<port>:<port>[:<role>][;<client port>]`.
    fn parse(text: &str) -> Self {
        let servers = text.lines().filter(|line| line.starts_with("server."));
        let (observers, voters): (Vec<&str>, Vec<&str>) =
            servers.partition(|line| line.contains(":observer"));
        Self { voters: voters.len(), observers: observers.len() }
    }

    fn voters(&self) -> Finding {
        let Self { voters, observers } = *self;
        let bears = voters.saturating_sub(1) / 2;
        let text =
            format!("{voters} voters and {observers} observers; it bears the loss of {bears}");
        match voters % 2 {
            0 => Finding::warning("ensemble", format!("{text}, as one voter fewer would"))
                .remedy("use an odd number of voters: make one an observer, or add one"),
            _ => Finding::ok("ensemble", text),
        }
    }

    /// Compares the configuration with the number of servers in the URL.
    fn named(&self, in_url: usize) -> Finding {
        let all = self.voters + self.observers;
        if in_url == all {
            return Finding::ok("members", format!("the URL names all {all}"));
        }
        let text = format!("the URL names {in_url} servers, and the ensemble has {all} members");
        Finding::warning("members", format!("{text}: a client fails over to named ones only"))
            .remedy("name each member once; a single name is enough only if it stands for all")
    }
}

/// Creates a node through the first member and looks for it through the others. Servers of
/// different ensembles share no locks.
async fn is_one(config: &Config, serving: &[&Member], own_name: &str) -> Finding {
    let Some(first) = serving.first().and_then(|member| member.client()) else {
        return unseen(&ZkError::ConnectionLoss);
    };
    let path = match create_own(config, first, own_name).await {
        Ok(path) => path,
        Err(error) => return unseen(&error),
    };
    let strangers = strangers(&serving[1..], &path).await;
    // If the user may not delete it, it ends with its session.
    let _ = first.delete(&path, None).await;
    match strangers {
        Err(error) => unseen(&error),
        Ok(strangers) if strangers.is_empty() => {
            Finding::ok("one ensemble", "a node created through one member is seen through all")
        }
        Ok(strangers) => Finding::failure(
            "one ensemble",
            format!(
                "{} and {} are of different ensembles: their clients do not exclude each other",
                serving[0].address,
                strangers.join(", ")
            ),
        )
        .remedy("name members of one ensemble only in the URL"),
    }
}

/// Creates a node of our own where the locks are, or above if there are none yet.
async fn create_own(config: &Config, client: &Client, own_name: &str) -> Result<String, ZkError> {
    let own = CreateMode::Ephemeral.with_acls(acls_of(config));
    for directory in directories(config) {
        let path = format!("{}/{own_name}", directory.trim_end_matches('/'));
        match client.create(&path, b"", &own).await {
            Ok(_) => return Ok(path),
            Err(ZkError::NoNode) => {}
            Err(error) => return Err(error),
        }
    }
    Err(ZkError::NoNode)
}

/// Returns the members through which the node is not seen.
async fn strangers<'a>(members: &[&'a Member], path: &str) -> Result<Vec<&'a str>, ZkError> {
    let mut strangers = Vec::new();
    for member in members {
        if !is_seen(member, path).await? {
            strangers.push(&*member.address);
        }
    }
    Ok(strangers)
}

async fn is_seen(member: &Member, path: &str) -> Result<bool, ZkError> {
    let Some(client) = member.client() else { return Err(ZkError::ConnectionLoss) };
    // The first request brings the member up to date for the second.
    client.sync("/").await?;
    Ok(client.check_stat(path).await?.is_some())
}

fn unseen(error: &ZkError) -> Finding {
    let why = fault("looking for a node of our own", error).into_source();
    Finding::unseen("one ensemble", why).remedy("give the user the rights that locks need")
}

#[cfg(test)]
mod tests {
    use lock_core::diagnosis::Severity;

    use super::*;

    const THREE: &str = "server.1=a:2888:3888:participant;0.0.0.0:2181\nserver.2=b:2888:3888\n\
        server.3=c:2888:3888:observer;2181\nversion=0";

    #[test]
    fn members_are_counted_by_their_roles() {
        assert_eq!(Configured::parse(THREE), Configured { voters: 2, observers: 1 });
        assert_eq!(Configured::parse("version=0"), Configured { voters: 0, observers: 0 });
    }

    #[test]
    fn an_even_number_of_voters_is_warned_of() {
        let voters = |voters| Configured { voters, observers: 0 }.voters().severity;
        assert_eq!(
            [2, 3, 4, 5].map(voters).map(|severity| severity == Severity::Ok),
            [false, true, false, true]
        );
    }

    #[test]
    fn a_url_that_names_other_servers_is_warned_of() {
        let named = |count| Configured::parse(THREE).named(count).severity;
        assert_eq!([1, 3, 4].map(named), [Severity::Warning, Severity::Ok, Severity::Warning]);
    }
}
