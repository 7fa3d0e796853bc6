//! The commands that verbs send besides scripts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use lock_core::backend::{Effect, Fault, Identity};
use lock_core::clock::Moment;
use redis::Value as Answer;

use crate::connection::batcher::{Answers, Commands};
use crate::connection::handle::Connection;
use crate::fault;
use crate::keys::{Keys, LockKeys};
use crate::limits::{TOKEN_RETENTION, millis};
use crate::queue::Unclaimed;
use crate::scripts::{Call, command};
use crate::topology::link::Link;
use crate::value::Value;

/// The number of keys that the server looks at in one step of a scan, in about a millisecond.
const SCAN_STEP: usize = 1000;

impl Link {
    /// Returns the identity and age of the server's process, or `None` if this user may not ask.
    pub(crate) async fn identity(self: &Arc<Self>) -> Result<Option<Identity>, Fault> {
        let connection = self.connection().await?;
        let Some(info) = self.info(&connection, "server").await? else { return Ok(None) };
        let up_for = info.get("uptime_in_seconds").and_then(|secs| secs.parse().ok());
        // The difference of two whole seconds may be one more than the time that has passed.
        let up_for = up_for.map(|uptime: u64| Duration::from_secs(uptime.saturating_sub(1)));
        let epoch = self.dialer.epoch_of(|current| current.id() == connection.id());
        Ok(info.get("run_id").map(|id| Identity::new(id, up_for).during(epoch)))
    }

    /// Returns a section of `INFO`, or `None` if this user may not ask.
    pub(crate) async fn info(
        &self,
        connection: &Connection,
        section: &'static str,
    ) -> Result<Option<Info>, Fault> {
        match connection.ask(redis::cmd("INFO").arg(section)).await {
            Ok(text) => Ok(Some(Info(text))),
            Err(error) if fault::is_refused(&error) => Ok(None),
            Err(error) => Err(self.failed(connection, "ask for INFO", &error)),
        }
    }

    /// Returns the slots of the cluster, as far as this member knows them.
    pub(crate) async fn slots(self: &Arc<Self>) -> Result<Answer, Fault> {
        let connection = self.connection().await?;
        let asked = connection.ask(redis::cmd("CLUSTER").arg("SLOTS")).await;
        asked.map_err(|error| self.failed(&connection, "ask where the slots are", &error))
    }

    /// Subscribes to the channel of `slot`.
    pub(crate) async fn listen(&self, connection: &Connection, slot: u16) -> Result<(), Fault> {
        let Some(channel) = self.client.channel_in(slot) else { return Ok(()) };
        let (mut redis, mut command) = (connection.redis.clone(), redis::cmd("SSUBSCRIBE"));
        let asking = command.arg(connection.channel(&channel)).query_async::<Answer>(&mut redis);
        let (_, answer) = connection.health.watch(asking).await;
        answer.map_err(|error| self.failed(connection, "listen to a channel", &error))?;
        connection.listens_in(slot);
        Ok(())
    }

    /// Returns the number of keys on the server.
    pub(crate) async fn count_keys(&self, connection: &Connection) -> Result<u64, Fault> {
        let asked = connection.ask(&redis::cmd("DBSIZE")).await;
        asked.map_err(|error| self.failed(connection, "count the keys", &error))
    }

    /// Scans some more of the server's keys. Returns the next cursor, which is `0` after the last
    /// step, and the keys of strings that match the pattern.
    pub(crate) async fn scan_step(
        &self,
        connection: &Connection,
        cursor: &str,
        pattern: &str,
    ) -> Result<(String, Vec<Vec<u8>>), Fault> {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_STEP);
        let asked = connection.ask(scan.arg("TYPE").arg("string")).await;
        asked.map_err(|error| self.failed(connection, "scan the keys", &error))
    }

    /// Reads the values of keys in one write. An empty value stands for one that is not a string or
    /// that this user may not read, and `None` for one on another server.
    pub(crate) async fn read_values(
        &self,
        connection: &Connection,
        keys: impl Iterator<Item = &str>,
    ) -> Result<Vec<Option<Vec<u8>>>, Fault> {
        let (mut redis, mut pipe) = (connection.redis.clone(), redis::pipe());
        for key in keys {
            // The value of a lock is short; a foreign value may have any length.
            pipe.cmd("GETRANGE").arg(key).arg(0).arg(Value::MAX_LEN);
        }
        let asking = pipe.ignore_errors().query_async::<Vec<Answer>>(&mut redis);
        let answers = connection.health.watch(asking).await.1;
        let answers = answers.map_err(|error| self.failed(connection, "read values", &error))?;
        let value = |answer| match answer {
            Answer::BulkString(value) => Some(value),
            Answer::ServerError(error) if matches!(error.code(), "WRONGTYPE" | "NOPERM") => {
                Some(Vec::new())
            }
            _ => None,
        };
        Ok(answers.into_iter().map(value).collect())
    }

    /// Asks the server for an invalidation at the next change of the key `watched`, and then reads
    /// the key `lock`. Returns whether `watched` exists, and the value of `lock`, if that key is a
    /// string. `None`: there is no such lock, or it could not be read.
    pub(crate) async fn watch(
        &self,
        connection: &Connection,
        watched: &str,
        lock: &str,
    ) -> Result<Option<Watched>, Fault> {
        let mut redis = connection.redis.clone();
        let mut pipe = redis::pipe();
        pipe.cmd("CLIENT").arg("CACHING").arg("YES").ignore();
        pipe.cmd("EXISTS").arg(watched);
        // The value of a lock is short; a foreign value may have any length.
        pipe.cmd("GETRANGE").arg(lock).arg(0).arg(Value::MAX_LEN);
        pipe.cmd("EXISTS").arg(lock);
        let asking = pipe.ignore_errors().query_async::<Vec<Answer>>(&mut redis);
        match connection.health.watch(asking).await.1 {
            Ok(answers) => Ok(parse_watch(answers)),
            Err(error) if fault::is_broken(&error) => Err(self.failed(connection, "watch", &error)),
            Err(_) => Ok(None),
        }
    }

    /// Sets the release key, which the next release deletes, and marks the lock for that release if
    /// it has this value. If the server refuses, there is no wake-up.
    pub(crate) async fn arm_release_key(
        &self,
        connection: &Connection,
        keys: &LockKeys,
        value: &[u8],
    ) -> Result<(), Fault> {
        let mut call = Call::new(&self.client.scripts().arm, &[keys.lock(), keys.release_key()]);
        call.arg(value).arg(millis(TOKEN_RETENTION));
        match self.send::<Answer>(connection, &call, None).await.1 {
            Err(error) if fault::is_broken(&error) => {
                Err(self.failed(connection, "ask for a wake-up", &error))
            }
            _ => Ok(()),
        }
    }

    /// Takes the lock without a script if its key is free, and raises its token key `by` a number.
    pub(crate) async fn take(
        &self,
        connection: &Connection,
        keys: &LockKeys,
        value: &str,
        ttl: u64,
        by: u64,
    ) -> Result<(Moment, Taken), Fault> {
        let commands = Arc::new(take(keys, value, ttl, by));
        let asking = connection.batcher.ask(&commands);
        let (asked, answers) = connection.health.watch(asking).await;
        let Answers { first: set, second: number } =
            answers.map_err(|error| self.failed(connection, "acquire", &error))?;
        let number = match number {
            Some(Answer::Int(number)) => u64::try_from(number).ok(),
            Some(Answer::ServerError(error)) if error.code() == "NOPERM" => {
                connection.health.refuses_to_count.store(true, Ordering::Relaxed);
                None
            }
            _ => None,
        };
        Ok((asked, Taken { is_set: set == Answer::Okay, number }))
    }

    /// Deletes the key if it has this value: by a command where the server has it, else by a
    /// script. False if the key has another value, or the server refuses.
    pub(crate) async fn delete_if_equal(
        &self,
        connection: &Connection,
        key: &str,
        value: &str,
    ) -> Result<bool, Fault> {
        let has_command = connection.may_delete_if_equal();
        let call = match has_command {
            true => Call::delete_if_equal(key, value),
            false => {
                let mut call = Call::new(&self.client.scripts().plain_release, &[key]);
                call.arg(value);
                call
            }
        };
        let error = match self.send::<bool>(connection, &call, None).await.1 {
            Ok(deleted) => return Ok(deleted),
            Err(error) => error,
        };
        // In a cluster it may just be elsewhere.
        if has_command && fault::is_refused(&error) && error.redirect_node().is_none() {
            connection.health.may_delete.store(false, Ordering::Relaxed);
        }
        let fault = self.failed(connection, "release", &error);
        // The other script may succeed, or return a better error.
        if fault.effect() == Effect::NotApplied { Ok(false) } else { Err(fault) }
    }

    /// Gives back a lock whose new owner does not wait for it here, and removes the stale entries
    /// of this client. If that fails, the claim lease expires.
    pub(crate) async fn give_back(self: Arc<Self>, unclaimed: Unclaimed) {
        let Unclaimed { lock, owner, token, arrived_by, waiting } = unclaimed;
        let Some(keys) = Keys::parse(&lock) else { return };
        let Some(channel) = self.client.channel(&keys) else { return };
        let mut call = Call::new(&self.client.scripts().refuse, &keys.all());
        call.arg(owner.expose()).arg(token).arg(&*channel).arg(arrived_by).arg(waiting);
        if let Ok(connection) = self.connection().await {
            let _ = self.run::<Answer>(&connection, "give back", &call).await;
        }
    }
}

/// Returns the commands of an attempt without a script.
fn take(keys: &LockKeys, value: &str, ttl: u64, by: u64) -> Commands {
    let mut set = command(&["SET", keys.lock(), value, "NX", "PX"]);
    let mut increase = command(&["INCRBY", keys.token()]);
    set.arg(ttl);
    increase.arg(by);
    Commands { first: set, second: Some(increase) }
}

/// The answers to an attempt without a script.
pub(crate) struct Taken {
    /// The lock has the value.
    pub(crate) is_set: bool,
    /// The number of the token key, if it is one.
    pub(crate) number: Option<u64>,
}

/// The text of `INFO`: lines of `name:value`.
pub(crate) struct Info(pub(crate) String);

impl Info {
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
    }

    /// Returns how a server of this mode has to be addressed, if a URL of another kind names it.
    pub(crate) fn wrong_mode(&self, in_cluster: bool) -> Option<&'static str> {
        // Valkey has a name of its own for it.
        match self.get("redis_mode").or(self.get("server_mode"))? {
            "cluster" if !in_cluster => {
                Some("the server is a member of a cluster: write redis+cluster://")
            }
            "sentinel" => Some("this is a sentinel: write redis+sentinel://host,host,host/name"),
            _ => None,
        }
    }
}

/// Whether the watched key exists, and the value of the lock; `None` for a key of another type.
pub(crate) type Watched = (bool, Option<Vec<u8>>);

/// Reads the answers of [`Link::watch`].
pub(crate) fn parse_watch(answers: Vec<Answer>) -> Option<Watched> {
    let [Answer::Int(is_there), value, Answer::Int(1)] = <[Answer; 3]>::try_from(answers).ok()?
    else {
        return None;
    };
    match value {
        Answer::BulkString(value) => Some((is_there == 1, Some(value))),
        Answer::ServerError(error) if error.code() == "WRONGTYPE" => Some((is_there == 1, None)),
        _ => None,
    }
}
