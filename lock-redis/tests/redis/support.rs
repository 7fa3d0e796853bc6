//! Real servers for the tests.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use lock_conformance::helpers::*;
use lock_core::backend::{Claim, Release, ReleaseMode};
use lock_core::clock::Moment;
use lock_core::{Backend, Lock, LockGuard};
use lock_redis::Redis;
use test_servers::{KeepData, Persistence, RedisOptions, Session, Step};

/// A lease that outlasts every test: it does not end, and no renewal or poll of it is due.
pub(crate) const LONG: Duration = Duration::from_secs(300);

/// The longest wait for an event on a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Until its connection has followed: an attempt that began before a failover was known fails after
/// it.
pub(crate) async fn verified(guard: &LockGuard) {
    until("it is connected again", async || {
        let verified = guard.verify().await;
        assert!(!verified.as_ref().is_err_and(|error| !error.is_retryable()), "{verified:?}");
        verified.is_ok()
    })
    .await;
}

/// The same, of a lock that is wanted.
pub(crate) async fn acquired(lock: &Lock) -> LockGuard {
    let mut guard = None;
    until("it is acquired", async || {
        let acquired = lock.acquire().await;
        assert!(!acquired.as_ref().is_err_and(|error| !error.is_retryable()), "{acquired:?}");
        guard = acquired.ok();
        guard.is_some()
    })
    .await;
    guard.expect("it was waited for")
}

/// Releases a held lock.
pub(crate) async fn release(locks: &Redis, held: &Claim) {
    assert_eq!(locks.release(held, ReleaseMode::now()).await.unwrap(), Release::Released);
}

/// Returns true if a replica in a cluster has the key.
pub(crate) fn replica_has(replica: &test_servers::Redis, key: &str) -> bool {
    let mut session = replica.connect().unwrap();
    session.command(&["READONLY"]).unwrap();
    session.command(&["EXISTS", key]).unwrap().text() == "1"
}

/// A Redis server of our own.
pub(crate) struct Server(Arc<test_servers::Redis>);

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
        Self(Arc::new(test_servers::Redis::start(options)))
    }

    /// One that finds its data again after a restart, and whose clock is ours.
    pub(crate) fn with_log_and_clock() -> Self {
        Self::with_options(RedisOptions::new().persistence(Persistence::Aof).clock())
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

    /// Returns the length of the server's log so far.
    pub(crate) fn written(&self) -> u64 {
        self.0.aof_len()
    }

    /// Cuts the power, truncates the log to the first `written` bytes, and starts the server again.
    pub(crate) fn lose_power(&self, written: u64) {
        self.0.kill();
        self.0.truncate_aof(written);
        self.0.restart(KeepData::Yes);
    }

    /// Steps its clock. If it runs, it goes by that when this returns: some server remembers the
    /// time between two ticks.
    pub(crate) fn step_clock(&self, step: Step) {
        let Ok(mut shell) = self.try_shell() else {
            self.0.step_clock(step);
            return;
        };
        let mut micros = || -> i64 {
            let script = [
                "EVAL",
                "local t = redis.call('TIME') return t[1] .. string.format('%06d', t[2])",
                "0",
            ];
            shell.command(&script).unwrap().text().parse().expect("a time")
        };
        let (before, began) = (micros(), Moment::now());
        self.0.step_clock(step);
        let by = match step {
            Step::Forward(by) => by.as_micros() as i64,
            Step::Back(by) => -(by.as_micros() as i64),
        };
        if by == 0 {
            return;
        }
        // Between the two it goes on by itself.
        while (micros() - before - by - Moment::now().saturating_since(began).as_micros() as i64)
            .abs()
            > by.abs() / 2
        {
            assert!(Moment::now() < began + Duration::from_secs(10), "it goes by its old time");
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.addr().port()
    }

    pub(crate) async fn client(&self) -> Redis {
        Redis::connect(self.url()).await.expect("the server takes us")
    }

    /// One whose waiters race for the lock.
    pub(crate) async fn client_in_any_order(&self) -> Redis {
        let url = format!("{}?order=any", self.url());
        Redis::connect(url).await.expect("the server takes us")
    }

    /// Opens an operator's connection.
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

    /// Returns all keys, sorted.
    pub(crate) fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.run("KEYS *");
        keys.sort_unstable();
        keys
    }

    pub(crate) fn get(&self, key: &str) -> Option<String> {
        self.command(&["GET", key])
    }

    /// Returns the remaining milliseconds of a key; negative without an expiry, or without the key.
    pub(crate) fn pttl(&self, key: &str) -> i64 {
        self.command(&["PTTL", key])
    }

    /// Returns the length of the queue of the lock with this key.
    pub(crate) fn waiting(&self, key: &str) -> u64 {
        self.command(&["ZCARD", &format!("{{{key}}}%queue")])
    }

    /// Returns how often the server has run a command, inside scripts too.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let stats: String = self.run("INFO commandstats");
        let prefix = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(prefix.as_str()));
        line.map_or(0, |rest| rest.split(',').next().unwrap().parse().expect("a number"))
    }
}

impl Deref for Server {
    type Target = test_servers::Redis;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}
