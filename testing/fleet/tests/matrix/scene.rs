//! The servers of a check, and the workers of both sides.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;
use std::time::Duration;

use libtest_mimic::Failed;
use lock_conformance::proxy::{Match, Proxy};
use lock_fleet::{Client, Servers, Side};
use serde_json::Value;
use test_servers::peers::Peer;
use test_servers::{Clock, Redis, RedisOptions};

/// The longest wait for an event on a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(35);

pub(crate) type Check = for<'a> fn(&'a Scene, Side) -> Pin<Box<dyn Future<Output = Checked> + 'a>>;

/// The observation of a check, or the reason why it failed.
pub(crate) type Checked = Result<String, String>;

/// Fresh servers, and a proxy of each side to them.
pub(crate) struct Scene {
    pub(crate) client: &'static Client,
    pub(crate) servers: Vec<Redis>,
    ours: Network,
    theirs: Network,
    prefix: String,
    target: PathBuf,
}

/// The way of one side to the servers.
struct Network {
    proxy: Proxy,
    addresses: Vec<String>,
}

impl Network {
    fn to(servers: &[Redis]) -> Self {
        let proxy = Proxy::start(servers[0].addr()).expect("a proxy can be started");
        let also = servers[1..].iter().map(|server| proxy.also(server.addr()));
        let also: Vec<_> = also.map(|address| address.expect("a port is free")).collect();
        let addresses = std::iter::once(proxy.addr()).chain(also).map(|a| a.to_string()).collect();
        Self { proxy, addresses }
    }
}

impl Scene {
    /// Starts the servers. With a `prefix` that is not the client's, both use different keys.
    pub(crate) fn start(client: &'static Client, target: &Path, prefix: &str) -> Self {
        Self::start_with(client, target, prefix, &RedisOptions::new())
    }

    /// Starts the servers with these options.
    pub(crate) fn start_with(
        client: &'static Client,
        target: &Path,
        prefix: &str,
        options: &RedisOptions,
    ) -> Self {
        let count = if client.servers == Servers::One { 1 } else { 3 };
        let servers: Vec<_> = (0..count).map(|_| Redis::start(options.clone())).collect();
        let (ours, theirs) = (Network::to(&servers), Network::to(&servers));
        Self { client, servers, ours, theirs, prefix: prefix.to_owned(), target: target.to_owned() }
    }

    pub(crate) fn run(&self, check: Check, holder: Side) -> Result<String, Failed> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let checked = runtime.expect("a runtime can be made").block_on(check(self, holder));
        // At once: the end of all trials may be far.
        checked.inspect_err(|error| println!("{}: {error}", self.client.name)).map_err(Failed::from)
    }

    /// Returns the proxy of a side.
    pub(crate) fn proxy(&self, side: Side) -> &Proxy {
        &self.network(side).proxy
    }

    /// Returns the request that asks for the lock, of a side that has no other lock.
    pub(crate) fn grant_of(&self, side: Side, name: &str) -> Match {
        // Of the requests with the name: one client first reads the value.
        let looks_first = side == Side::Theirs && self.client.name == "python-redis-lock";
        Match::on(name).nth(if looks_first { 2 } else { 1 })
    }

    fn network(&self, side: Side) -> &Network {
        match side {
            Side::Ours => &self.ours,
            Side::Theirs => &self.theirs,
        }
    }

    /// Starts a worker of a side, which waits for commands.
    pub(crate) async fn worker(&self, side: Side) -> Result<Worker, String> {
        self.worker_with(side, &[]).await
    }

    /// Starts a worker with options, which are those of the URL for ours.
    pub(crate) async fn worker_with(&self, side: Side, options: &[&str]) -> Result<Worker, String> {
        match side {
            Side::Ours => {
                let mut command = ours();
                let options: String = options.iter().map(|option| format!("&{option}")).collect();
                command.arg(self.our_url(&self.ours.addresses) + &options);
                Worker::start("ours", command).await
            }
            Side::Theirs => Worker::start(self.client.name, self.their_command(options)).await,
        }
    }

    /// Starts a worker of the client with options, whose wall clock is this one.
    pub(crate) async fn worker_by(
        &self,
        clock: &Clock,
        options: &[&str],
    ) -> Result<Worker, String> {
        let mut command = self.their_command(options);
        clock.give_to(&mut command);
        Worker::start(self.client.name, command).await
    }

    fn their_command(&self, options: &[&str]) -> Command {
        let mut command = self.client.command(&self.target);
        command.args(options).arg(url(&self.theirs.addresses, ""));
        command
    }

    /// Starts a worker of ours that sends each request, even of a lock that it has lost.
    pub(crate) async fn detached(&self) -> Result<Worker, String> {
        let mut command = ours();
        command.arg("detached").arg(self.our_url(&self.ours.addresses));
        Worker::start("ours, detached", command).await
    }

    fn our_url(&self, addresses: &[String]) -> String {
        // The machine may be busy.
        const PATIENT: &str = "timeout=30s";
        let prefix = &self.prefix;
        match (addresses, prefix.as_str()) {
            ([_], "") => url(addresses, &format!("?{PATIENT}")),
            ([_], prefix) => url(addresses, &format!("?{PATIENT}&prefix={prefix}")),
            (_, prefix) => {
                let option = format!("%3Fprefix%3D{prefix}");
                let members = url(addresses, if prefix.is_empty() { "" } else { &option });
                // The servers are fresh, and would be counted only after a minute.
                format!("{members}&{PATIENT}&member_timeout=5s&restarts=remember")
            }
        }
    }

    /// Returns the values of the lock on all servers, as the server stores them.
    pub(crate) fn values(&self, name: &str) -> Vec<String> {
        self.on_each(&["DUMP", &self.client.key(name)])
    }

    /// Returns on how many servers the lock exists.
    pub(crate) fn copies(&self, name: &str) -> usize {
        let there = self.on_each(&["EXISTS", &self.client.key(name)]);
        there.iter().filter(|text| *text == "1").count()
    }

    /// Returns the longest rest of a lease in milliseconds; negative if there is none.
    pub(crate) fn rest(&self, name: &str) -> i64 {
        let rests = self.on_each(&["PTTL", &self.client.key(name)]);
        rests.iter().filter_map(|text| text.parse().ok()).max().unwrap_or(-2)
    }

    /// Deletes the data of all servers.
    pub(crate) fn lose_data(&self) {
        self.on_each(&["FLUSHALL"]);
    }

    fn on_each(&self, words: &[&str]) -> Vec<String> {
        self.servers.iter().map(|server| server.command(words).text()).collect()
    }
}

fn ours() -> Command {
    Command::new(env!("CARGO_BIN_EXE_fleet-worker"))
}

/// Returns the URL of one server or of a quorum.
fn url(addresses: &[String], options: &str) -> String {
    let urls: Vec<_> = addresses.iter().map(|addr| format!("redis://{addr}{options}")).collect();
    match urls.as_slice() {
        [url] => url.clone(),
        urls => format!("quorum:?member={}", urls.join("&member=")),
    }
}

/// A worker, and the answers of its protocol.
pub(crate) struct Worker {
    name: String,
    pub(crate) peer: Peer,
}

/// The answer to a question that a client may not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Yes,
    No,
    /// The library does not tell, or has no such call.
    Unknown,
    /// The library reports an error.
    Refused(String),
}

impl Answer {
    fn of(answer: &Value, field: &str) -> Self {
        if let Some(why) = answer["error"].as_str() {
            return Self::Refused(why.to_owned());
        }
        match answer[field].as_bool() {
            Some(true) => Self::Yes,
            Some(false) => Self::No,
            None => Self::Unknown,
        }
    }

    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Unknown => "unknown",
            Self::Refused(_) => "error",
        }
    }
}

impl Worker {
    async fn start(name: &str, command: Command) -> Result<Self, String> {
        let mut worker = Self { name: name.to_owned(), peer: Peer::start(name, command) };
        let ready = worker.answer().await?;
        if ready["ready"] != 1 {
            return Err(format!("{name} is not ready: {ready}"));
        }
        Ok(worker)
    }

    /// Returns the next answer.
    pub(crate) async fn answer(&mut self) -> Result<Value, String> {
        let line = self.peer.answer().await;
        self.parse(&line)
    }

    pub(crate) fn parse(&self, line: &str) -> Result<Value, String> {
        serde_json::from_str(line).map_err(|_| format!("{} says {line:?}", self.name))
    }

    async fn ask(&mut self, command: &str) -> Result<Value, String> {
        self.peer.tell(command);
        self.answer().await
    }

    /// Sends a command that must not fail, and returns the answer.
    pub(crate) async fn must(&mut self, command: &str) -> Result<Value, String> {
        let answer = self.ask(command).await?;
        self.succeeded(command, answer)
    }

    /// Returns the answer to a command that must not have failed.
    pub(crate) fn succeeded(&self, command: &str, answer: Value) -> Result<Value, String> {
        match answer.get("error").or(answer.get("cannot")) {
            Some(why) => Err(format!("{} fails to {command}: {why}", self.name)),
            None => Ok(answer),
        }
    }

    /// Waits for the answer to `hold`, and returns the time of the grant.
    pub(crate) async fn acquired(&mut self) -> Result<u64, String> {
        let answer = self.answer().await?;
        let answer = self.succeeded("hold", answer)?;
        answer["acquired"].as_u64().ok_or_else(|| format!("{} says {answer}", self.name))
    }

    pub(crate) async fn ttl(&mut self, ms: u64) -> Result<(), String> {
        self.must(&format!("ttl {ms}")).await.map(drop)
    }

    pub(crate) async fn tries(&mut self, name: &str) -> Result<Answer, String> {
        Ok(Answer::of(&self.ask(&format!("try {name}")).await?, "held"))
    }

    /// Returns the answer to a `try` that was sent before.
    pub(crate) async fn tried(&mut self) -> Result<Answer, String> {
        Ok(Answer::of(&self.answer().await?, "held"))
    }

    pub(crate) async fn is_held(&mut self, name: &str) -> Result<Answer, String> {
        Ok(Answer::of(&self.ask(&format!("held {name}")).await?, "held"))
    }

    pub(crate) async fn extends(&mut self, name: &str, ms: u64) -> Result<Answer, String> {
        Ok(Answer::of(&self.ask(&format!("extend {name} {ms}")).await?, "extended"))
    }

    /// Releases; `Yes` if the library reports no failure.
    pub(crate) async fn frees(&mut self, name: &str) -> Result<Answer, String> {
        let answer = self.ask(&format!("free {name}")).await?;
        Ok(match answer["let_go"].is_u64() {
            true => Answer::Yes,
            false => Answer::of(&answer, "freed"),
        })
    }

    /// Releases a held lock, and returns the time of the call.
    pub(crate) async fn lets_go(&mut self, name: &str) -> Result<u64, String> {
        let answer = self.must(&format!("free {name}")).await?;
        answer["let_go"].as_u64().ok_or_else(|| format!("{} says {answer}", self.name))
    }
}
