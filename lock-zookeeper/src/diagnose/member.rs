//! The members of the URL: whether each opens a session that can hold locks.

use std::time::Duration;

use lock_core::diagnosis::Finding;
use lock_core::{Error, ErrorKind};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use zookeeper_client::{Client, SessionState};

use super::words::{BOUND, NoAnswer, ask, value};
use crate::config::Config;
use crate::fault::error;
use crate::session::Connection;
use crate::session::manager::first_heartbeat;

/// The bound on a session and its first commit.
const SESSION_BOUND: Duration = Duration::from_secs(10);

/// A member of the URL, and its answers.
pub(super) struct Member {
    pub(super) address: String,
    /// The answers to the four letter words, or the reason why there is none.
    pub(super) srvr: Result<String, NoAnswer>,
    pub(super) conf: Result<String, NoAnswer>,
    pub(super) session: Result<Connection, NoSession>,
}

/// The check that a member failed, and the reason.
pub(super) struct NoSession {
    check: &'static str,
    why: String,
}

impl Member {
    /// Returns the client of a member that has a session.
    pub(super) fn client(&self) -> Option<&Client> {
        self.session.as_ref().ok().map(Connection::client)
    }

    /// Returns the mode of the member, if it says so.
    pub(super) fn mode(&self) -> Option<&str> {
        value(self.srvr.as_ref().ok()?, "Mode: ")
    }

    /// Closes the session.
    pub(super) async fn close(self) {
        if let Ok(session) = self.session {
            session.close().await;
        }
    }
}

/// Asks all members at the same time. They are in the order of the URL.
pub(super) async fn survey(config: &Config) -> Vec<Member> {
    let mut asking = JoinSet::new();
    for (at, address) in config.servers.split(',').enumerate() {
        let (config, address) = (config.clone(), address.to_owned());
        asking.spawn(async move { (at, survey_one(&config, address).await) });
    }
    let mut members = asking.join_all().await;
    members.sort_by_key(|(at, _)| *at);
    members.into_iter().map(|(_, member)| member).collect()
}

async fn survey_one(config: &Config, address: String) -> Member {
    if let Err(why) = reach(&address).await {
        let unreachable = || Err(NoAnswer::new("the server cannot be reached"));
        let session = Err(NoSession { check: "connection", why });
        return Member { address, srvr: unreachable(), conf: unreachable(), session };
    }
    let (srvr, conf) = (ask(config, &address, "srvr").await, ask(config, &address, "conf").await);
    let opening = tokio::time::timeout(SESSION_BOUND, open(config, &address));
    let session = opening.await.unwrap_or_else(|_| {
        let why = format!("it opens no session and commits no write within {SESSION_BOUND:?}");
        Err(NoSession { check: "connection", why })
    });
    Member { address, srvr, conf, session }
}

/// Connects to the port. The client crate does not report why a connection failed.
async fn reach(address: &str) -> Result<(), String> {
    match tokio::time::timeout(BOUND, TcpStream::connect(address)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(format!("it cannot be reached: {error}")),
        Err(_) => Err(format!("it cannot be reached: no answer within {BOUND:?}")),
    }
}

/// Opens a session and commits a heartbeat write, as a backend does.
async fn open(config: &Config, address: &str) -> Result<Connection, NoSession> {
    let refused = |error: Error| NoSession {
        check: if error.kind() == ErrorKind::Denied { "login" } else { "connection" },
        why: error.to_string(),
    };
    let opened = Connection::open(config, address, None).await;
    let connection = opened.map_err(refused)?.map_err(|e| refused(error(&e)))?;
    let Err(error) = first_heartbeat(connection.client(), &config.chroot).await else {
        return Ok(connection);
    };
    let check = match error.kind() {
        ErrorKind::Invalid => "chroot",
        ErrorKind::Denied if connection.client().state() != SessionState::AuthFailed => "rights",
        ErrorKind::Denied => "login",
        _ => "connection",
    };
    connection.close().await;
    Err(NoSession { check, why: error.to_string() })
}

/// Returns a finding for each member. One without a session is a failure only if no other member
/// has one.
pub(super) fn connections(config: &Config, members: &[Member]) -> Vec<Finding> {
    let serving = members.iter().filter(|member| member.session.is_ok()).count();
    let mut findings = Vec::new();
    for member in members {
        let finding = match &member.session {
            Ok(_) => Finding::ok("connection", "it opens sessions and commits writes")
                .of_server(&member.address),
            Err(no_session) => no_session.finding(member, serving, members.len()),
        };
        // Members of one ensemble have the same nodes, and so the same refusals.
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    if serving > 0 {
        findings.push(login(config));
    }
    findings
}

impl NoSession {
    fn finding(&self, member: &Member, serving: usize, all: usize) -> Finding {
        let why = &self.why;
        match self.check {
            "chroot" => Finding::failure("chroot", why).remedy("create the chroot's node"),
            "rights" => Finding::failure("rights", why)
                .remedy("give the user of the URL the right to read the chroot, or / without one"),
            "login" => Finding::failure("login", why)
                .remedy("use user:password@ of a user that the server knows; SASL is not supported")
                .of_server(&member.address),
            _ if serving > 0 => Finding::warning(
                "connection",
                format!("{why}; {serving} of {all} members of the URL serve, and locks go on"),
            )
            .remedy(self.remedy(member))
            .of_server(&member.address),
            _ => Finding::failure("connection", why)
                .remedy(self.remedy(member))
                .of_server(&member.address),
        }
    }

    fn remedy(&self, member: &Member) -> &'static str {
        match &member.srvr {
            Ok(_) => {
                "see the log of the server, its links to the other members, and maxClientCnxns"
            }
            Err(_) if self.why.starts_with("it cannot be reached") => {
                "start the server, mend its name or the network, or take it out of the URL"
            }
            Err(_) => {
                "check that it is the client port of a ZooKeeper; a port with TLS needs zookeeper+tls://"
            }
        }
    }
}

fn login(config: &Config) -> Finding {
    let text = match config.credentials {
        Some(_) => "the nodes of the locks belong to the user of the URL alone",
        None => "no user in the URL: every client of the ensemble can read and delete the nodes",
    };
    Finding::ok("login", text)
}
