//! Real servers for the tests.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use conformance_tests::proxy::Proxy;
pub(crate) use conformance_tests::servers::Step;
use conformance_tests::servers::{KeepData, Persistence, RedisOptions, Session};
use lock_core::backend::{Attempt, Claim, Fault, Grant, Renewal};
use lock_core::clock::{Moment, sleep};
use lock_core::{Backend, LockName, OwnerId};
use lock_redis::Redis;

/// What a user needs whose prefix is `app:`, as the documentation of the crate has it.
pub(crate) const LEAST_RIGHTS: &str = "resetkeys ~app:* ~{app:* resetchannels -@all +info \
    +client|tracking +client|caching +script|load +evalsha +getrange +exists +pttl +time +set \
    +pexpire +del";

/// A Redis server of our own.
pub(crate) struct Server(Arc<conformance_tests::servers::Redis>);

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    pub(crate) fn with(settings: &[(&str, &str)]) -> Self {
        let options =
            settings.iter().fold(RedisOptions::new(), |o, (name, value)| o.setting(name, value));
        Self::with_options(options)
    }

    pub(crate) fn with_options(options: RedisOptions) -> Self {
        Self(Arc::new(conformance_tests::servers::Redis::start(options)))
    }

    /// One that finds its data again after a restart, and whose clock is ours.
    pub(crate) fn with_log_and_clock() -> Self {
        Self::with_options(RedisOptions::new().persistence(Persistence::Aof).clock())
    }

    /// Ends it at once, as `kill -9` does.
    pub(crate) fn kill(&self) {
        self.0.kill();
    }

    /// Starts a new one on the same port, without data.
    pub(crate) fn start_again(&self) {
        self.0.restart(KeepData::No);
    }

    /// Starts a new one on the same port, with the data that are on its disk.
    pub(crate) fn start_with_data(&self) {
        self.0.restart(KeepData::Yes);
    }

    /// As [`start_with_data`](Self::start_with_data), and returns before it has loaded them. It has
    /// half a minute for it.
    pub(crate) fn start_with_data_meanwhile(&self) {
        let server = Arc::clone(&self.0);
        std::thread::spawn(move || server.restart(KeepData::Yes));
    }

    /// How much it has written to its log so far.
    pub(crate) fn written(&self) -> u64 {
        self.0.aof_len()
    }

    /// Loses its power, and what it has `written` after that, and starts again.
    pub(crate) fn lose_power(&self, written: u64) {
        self.0.kill();
        self.0.truncate_aof(written);
        self.0.restart(KeepData::Yes);
    }

    pub(crate) fn step_clock(&self, step: Step) {
        self.0.step_clock(step);
    }

    pub(crate) fn run_clock_too_fast_by(&self, thousandths: i32) {
        self.0.run_clock_too_fast_by(thousandths);
    }

    pub(crate) fn directory(&self) -> &Path {
        self.0.directory()
    }

    pub(crate) fn stop(&self) {
        self.0.stop();
    }

    pub(crate) fn cont(&self) {
        self.0.cont();
    }

    pub(crate) fn addr(&self) -> std::net::SocketAddr {
        self.0.addr()
    }

    pub(crate) fn process(&self) -> &conformance_tests::servers::Redis {
        &self.0
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.addr().port()
    }

    pub(crate) fn url(&self) -> String {
        self.0.url()
    }

    pub(crate) fn unix_socket(&self) -> PathBuf {
        self.0.unix_socket()
    }

    pub(crate) async fn client(&self) -> Redis {
        Redis::connect(self.url()).await.expect("the server takes us")
    }

    /// An operator's connection.
    pub(crate) fn operator(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("the URL is good");
        client.get_connection().expect("the server takes us")
    }

    /// A shell of an operator that takes refusals for answers.
    pub(crate) fn shell(&self) -> Session {
        self.try_shell().expect("the server is there")
    }

    pub(crate) fn try_shell(&self) -> io::Result<Session> {
        self.0.connect()
    }

    /// Runs a command of an operator: words separated by spaces.
    pub(crate) fn run<T: redis::FromRedisValue>(&self, command: &str) -> T {
        let words = command.split(' ').collect::<Vec<_>>();
        self.command(&words)
    }

    pub(crate) fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(word);
        }
        command.query(&mut self.operator()).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// All keys, sorted.
    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.run("KEYS *");
        keys.sort_unstable();
        keys
    }

    pub(crate) fn get(&self, key: &str) -> Option<String> {
        self.command(&["GET", key])
    }

    /// What is left of a key in milliseconds; negative if it has no end, or is not there.
    pub(crate) fn pttl(&self, key: &str) -> i64 {
        self.command(&["PTTL", key])
    }

    /// How often the server has run a command, with those inside scripts.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let stats: String = self.run("INFO commandstats");
        let prefix = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(prefix.as_str()));
        line.map_or(0, |rest| rest.split(',').next().unwrap().parse().expect("a number"))
    }
}

/// A way to the server that can be disturbed, and its URL.
pub(crate) fn proxied(server: &Server) -> (Proxy, String) {
    let proxy = Proxy::start(([127, 0, 0, 1], server.port()).into()).expect("a proxy can be made");
    let url = format!("redis://{}", proxy.addr());
    (proxy, url)
}

pub(crate) fn name(text: &str) -> LockName {
    LockName::new(text).expect("tests use good names")
}

pub(crate) fn claim(text: &str, ttl_ms: u64) -> Claim {
    Claim::new(name(text), OwnerId::mint(), Duration::from_millis(ttl_ms))
}

/// The grant, or a panic that says what there was instead.
#[track_caller]
pub(crate) fn granted(answer: Result<Attempt, Fault>) -> Grant {
    match answer {
        Ok(Attempt::Acquired(grant)) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

/// What is left of the holder's lease.
#[track_caller]
pub(crate) fn contended(answer: Result<Attempt, Fault>) -> Option<Duration> {
    match answer {
        Ok(Attempt::Contended { lapses_in }) => lapses_in,
        other => panic!("not contended: {other:?}"),
    }
}

pub(crate) async fn win(backend: &Redis, claim: &mut Claim) -> Grant {
    let grant = granted(backend.try_acquire(claim).await);
    claim.ticket.clone_from(&grant.ticket);
    grant
}

pub(crate) async fn renew(backend: &Redis, claim: &Claim) -> Result<Renewal, Fault> {
    backend.renew(&[claim]).await.pop().expect("one answer for one claim")
}

/// Waits for a condition, with a deadline.
#[track_caller]
pub(crate) fn eventually(mut condition: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let end = Moment::now() + Duration::from_secs(20);
        while !condition() {
            assert!(!end.has_passed(), "it did not happen: {caller}");
            sleep(Duration::from_millis(5)).await;
        }
    }
}
