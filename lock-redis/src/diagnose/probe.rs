//! A connection to one server for checks, and the parts of its state that several checks read.

use std::collections::HashMap;
use std::sync::Arc;

use lock_core::Order;
use lock_core::backend::{Fault, FaultKind};
use lock_core::diagnosis::Finding;
use redis::aio::ConnectionLike;
use redis::{Cmd, FromRedisValue, RedisError, Value as Answer};

use crate::clock::within;
use crate::config::Config;
use crate::connection::address::Endpoint;
use crate::connection::client_state::ClientState;
use crate::connection::handle::Connection;
use crate::fault;
use crate::keys::LockKeys;
use crate::limits::CONNECT_TIMEOUT;
use crate::topology::commands::Info;
use crate::topology::link::Link;

/// The sections of `INFO` that are read.
const SECTIONS: [&str; 6] = ["server", "memory", "persistence", "replication", "clients", "stats"];

/// The settings that are read.
const SETTINGS: [&str; 8] = [
    "appendfsync",
    "no-appendfsync-on-rewrite",
    "save",
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "maxclients",
    "timeout",
    "tcp-keepalive",
];

/// A server that is checked.
pub(crate) struct Probe {
    pub(crate) link: Arc<Link>,
    pub(crate) connection: Connection,
    /// Keys of no lock. In a cluster, `None` if this server has no key of the prefix.
    pub(crate) trial: Option<LockKeys>,
    /// The order of waiters that the configuration asks for.
    pub(crate) order: Option<Order>,
    /// The reason why no waiter can be queued, if the server can be used only without.
    pub(crate) no_queue: Option<String>,
    info: Vec<(&'static str, Seen<Info>)>,
    settings: Seen<HashMap<String, String>>,
}

/// The result of a look at a part of a server.
pub(crate) type Seen<T> = Result<T, Unseen>;

/// The reason why a part of a server could not be seen.
#[derive(Clone, Debug)]
pub(crate) struct Unseen {
    why: String,
    remedy: Option<String>,
}

impl Probe {
    /// Connects as locks do. If that fails because waiters cannot be queued, connects without.
    pub(crate) async fn open(
        config: &Config,
        client: &Arc<ClientState>,
        trial: Option<LockKeys>,
    ) -> Result<Self, Fault> {
        let link = Arc::new(Link::new(config.clone(), Arc::clone(client)));
        let (link, connection, no_queue) = match link.connect_in_time().await {
            Ok(connection) => (link, connection, None),
            Err(fault)
                if matches!(fault.kind(), FaultKind::Denied | FaultKind::Unsupported)
                    && client.id.is_some() =>
            {
                let racing = config.clone().order(Order::PerProcess);
                let mut state = ClientState::new(&racing);
                state.in_cluster = client.in_cluster;
                let link = Arc::new(Link::new(racing, Arc::new(state)));
                match link.connect_in_time().await {
                    Ok(connection) => (link, connection, Some(fault::cause_and_advice(fault).0)),
                    Err(_) => return Err(fault),
                }
            }
            Err(fault) => return Err(fault),
        };
        let unread = Err(Unseen::new("it was not asked"));
        let (order, info) = (config.order, Vec::new());
        let mut probe = Self { link, connection, trial, order, no_queue, info, settings: unread };
        for section in SECTIONS {
            let info = probe.ask(redis::cmd("INFO").arg(section), "INFO", "info").await;
            probe.info.push((section, info.map(Info)));
        }
        probe.settings = probe.read_settings().await;
        Ok(probe)
    }

    /// Sends a command for which a user needs the `right`. The error names the command as `shown`.
    pub(crate) async fn ask<T: FromRedisValue>(
        &self,
        command: &Cmd,
        shown: &str,
        right: &str,
    ) -> Seen<T> {
        match within(CONNECT_TIMEOUT, self.connection.ask(command)).await {
            Some(answer) => answer.map_err(|error| Unseen::refused(shown, right, &error)),
            None => Err(Unseen::new(format!("the server does not answer {shown}"))),
        }
    }

    /// Sends commands in one write, and returns the answer to each one, errors included.
    pub(crate) async fn ask_all<'a>(
        &self,
        commands: impl IntoIterator<Item = &'a Cmd>,
    ) -> Seen<Vec<Result<Answer, RedisError>>> {
        let mut pipe = redis::pipe();
        commands.into_iter().for_each(|command| {
            pipe.add_command(command.clone());
        });
        if pipe.is_empty() {
            return Ok(Vec::new());
        }
        let mut redis = self.connection.redis.clone();
        let asking = redis.req_packed_commands(&pipe, 0, pipe.len());
        match within(CONNECT_TIMEOUT, asking).await {
            Some(Ok(answers)) => Ok(answers.into_iter().map(Answer::extract_error).collect()),
            Some(Err(error)) => Err(Unseen::new(fault::message(&error))),
            None => Err(Unseen::new("the server does not answer")),
        }
    }

    /// Returns a section of `INFO`.
    pub(crate) fn info(&self, name: &str) -> Seen<&Info> {
        let found = self.info.iter().find(|(section, _)| *section == name);
        let (_, info) = found.ok_or_else(|| Unseen::new("it was not asked for"))?;
        info.as_ref().map_err(Clone::clone)
    }

    /// Returns a field of a section of `INFO`.
    pub(crate) fn field(&self, section: &str, name: &str) -> Seen<&str> {
        let value = self.info(section)?.get(name);
        value.ok_or_else(|| Unseen::new(format!("INFO {section} has no {name}")))
    }

    /// Returns a number in a section of `INFO`.
    pub(crate) fn number(&self, section: &str, name: &str) -> Seen<u64> {
        let value = self.field(section, name)?;
        value.parse().map_err(|_| Unseen::new(format!("{name} in INFO {section} is no number")))
    }

    /// Returns a setting.
    pub(crate) fn setting(&self, name: &str) -> Seen<&str> {
        let settings = self.settings.as_ref().map_err(Clone::clone)?;
        let value = settings.get(name).map(String::as_str);
        value.ok_or_else(|| Unseen::new(format!("the server does not report the setting {name}")))
    }

    /// Returns true if another server may take over the locks.
    pub(crate) fn may_fail_over(&self) -> bool {
        self.client().in_cluster || matches!(self.config().endpoint, Endpoint::Sentinel(_))
    }

    /// Returns true if this server is a replica, as far as it says so.
    pub(crate) fn is_replica(&self) -> bool {
        self.field("replication", "role").is_ok_and(|role| role == "slave")
    }

    /// Returns true if waiters are to be queued, where the server can do that.
    pub(crate) fn wants_queue(&self) -> bool {
        self.order != Some(Order::PerProcess)
    }

    pub(crate) fn config(&self) -> &Config {
        &self.link.config
    }

    pub(crate) fn client(&self) -> &ClientState {
        &self.link.client
    }

    async fn read_settings(&self) -> Seen<HashMap<String, String>> {
        let mut all = HashMap::new();
        for name in SETTINGS {
            let mut command = redis::cmd("CONFIG");
            command.arg("GET").arg(name);
            let some: HashMap<String, String> =
                self.ask(&command, "CONFIG GET", "config|get").await?;
            all.extend(some);
        }
        Ok(all)
    }
}

impl Unseen {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), remedy: None }
    }

    /// Returns the reason in the error of a command, for which a user needs the `right`.
    pub(crate) fn refused(command: &str, right: &str, error: &RedisError) -> Self {
        let said = fault::message(error);
        if !fault::is_refused(error) {
            return Self::new(format!("{command} failed: {said}"));
        }
        if fault::is_hidden(error) {
            let why = format!("the server does not have {command}, or hides it");
            return Self { why, remedy: Some("check it by hand".to_owned()) };
        }
        let why = format!("the server refuses {command} to this user: {said}");
        Self { why, remedy: Some(format!("grant +{right}, or check it by hand")) }
    }

    /// Returns the finding of a check that needs what could not be seen.
    pub(crate) fn finding(self, check: &'static str) -> Finding {
        let finding = Finding::unseen(check, self.why);
        match self.remedy {
            Some(remedy) => finding.remedy(remedy),
            None => finding,
        }
    }
}

/// Returns the finding that a server cannot be used at all.
pub(crate) fn unusable(fault: Fault) -> Finding {
    let (is_denied, is_down) =
        (fault.kind() == FaultKind::Denied, fault.kind() == FaultKind::Unavailable);
    let is_certificate = fault::is_certificate_refusal(&fault);
    let (cause, advice) = fault::cause_and_advice(fault);
    let check = match is_denied && !is_certificate {
        true if cause.contains("permissions") => "rights",
        true => "login",
        false => "connection",
    };
    let finding = Finding::failure(check, cause);
    match advice {
        Some(advice) => finding.remedy(advice),
        None if is_down => {
            finding.remedy("check that the server runs, and that the URL has its address")
        }
        None => finding,
    }
}
