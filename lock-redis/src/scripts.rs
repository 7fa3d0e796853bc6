//! The scripts that run on the server. Each file states its guarantees.

use std::sync::{Arc, LazyLock};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, RedisError, RedisWrite, Script, ToRedisArgs};

use crate::connection::batcher::{Batcher, Commands};

/// For one server.
pub(crate) static PLAIN: LazyLock<Scripts> = LazyLock::new(|| Scripts::new(str::to_owned));

/// For a cluster. There `PUBLISH` reaches every member, and counts only the listeners at the member
/// that runs it. A message on a channel of a slot stays at the slot's member.
pub(crate) static SHARDED: LazyLock<Scripts> =
    LazyLock::new(|| Scripts::new(|script| script.replace("'PUBLISH'", "'SPUBLISH'")));

macro_rules! scripts {
    ($($name:ident: $($file:literal)+;)*) => {
        pub(crate) struct Scripts {
            $(pub(crate) $name: Script,)*
        }

        impl Scripts {
            fn new(adapt: impl Fn(&str) -> String) -> Self {
                let script = |source| Script::new(&adapt(source));
                Self { $($name: script(concat!($(include_str!(concat!("scripts/", $file))),+)),)* }
            }
        }
    };
}

scripts! {
    acquire: "prelude.lua" "queue.lua" "acquire.lua";
    plain_release: "plain_release.lua";
    arm: "arm.lua";
    quick_renew: "quick_renew.lua";
    renew: "prelude.lua" "queue.lua" "renew.lua";
    release: "prelude.lua" "queue.lua" "release.lua";
    refuse: "prelude.lua" "queue.lua" "refuse.lua";
    break_lock: "prelude.lua" "queue.lua" "break.lua";
    inspect: "prelude.lua" "inspect.lua";
    rights: "rights.lua";
}

/// From Valkey 9 on.
pub(crate) const DELETE_IF_EQUAL: &str = "DELIFEQ";

/// A script with its keys and arguments, as the command that is sent: each is written once, where
/// an invocation of the library's own has a piece of the heap for it. Or a command that is none.
#[derive(Clone)]
pub(crate) struct Call {
    script: Option<&'static Script>,
    /// One.
    commands: Arc<Commands>,
}

impl Call {
    pub(crate) fn new(script: &'static Script, keys: &[&str]) -> Self {
        /// Room for the arguments and for their bytes, besides the keys.
        const ARGUMENTS: usize = 10;
        const BYTES: usize = 256;

        let bytes = keys.iter().map(|key| key.len()).sum::<usize>() + BYTES;
        let mut command = Cmd::with_capacity(keys.len() + ARGUMENTS, bytes);
        command.arg("EVALSHA").arg(script.get_hash()).arg(keys.len());
        keys.iter().for_each(|key| command.write_arg(key.as_bytes()));
        Self::of(Some(script), command)
    }

    /// Deletes the key if it has this value, where the server can do that without a script. The
    /// answer is 1 if it did.
    pub(crate) fn delete_if_equal(key: &str, value: &str) -> Self {
        Self::of(None, command(&[DELETE_IF_EQUAL, key, value]))
    }

    /// Deletes keys of one slot.
    pub(crate) fn delete(keys: &[&str]) -> Self {
        let mut command = redis::cmd("DEL");
        command.arg(keys);
        Self::of(None, command)
    }

    fn of(script: Option<&'static Script>, command: Cmd) -> Self {
        Self { script, commands: Arc::new(Commands { first: command, second: None }) }
    }

    pub(crate) fn arg(&mut self, argument: impl ToRedisArgs) -> &mut Self {
        Arc::make_mut(&mut self.commands).first.arg(argument);
        self
    }

    /// Returns the command, for a server that has the script, or for a caller that handles the
    /// error.
    pub(crate) fn command(&self) -> &Cmd {
        &self.commands.first
    }

    pub(crate) async fn load(&self, redis: &MultiplexedConnection) -> Result<(), RedisError> {
        match self.script {
            Some(script) => script.load_async(&mut redis.clone()).await.map(drop),
            None => Ok(()),
        }
    }

    /// Runs the script, together with other requests.
    pub(crate) async fn run<T: FromRedisValue>(&self, batcher: &Batcher) -> Result<T, RedisError> {
        let ask = || async {
            let answers = batcher.ask(&self.commands).await?;
            Ok(redis::from_redis_value(answers.first.extract_error()?)?)
        };
        self.run_by(ask, &batcher.redis).await
    }

    /// Runs the script in a pipeline to itself.
    pub(crate) async fn run_alone<T: FromRedisValue>(
        &self,
        redis: &MultiplexedConnection,
    ) -> Result<T, RedisError> {
        let ask = || async { self.command().query_async(&mut redis.clone()).await };
        self.run_by(ask, redis).await
    }

    /// Runs the script by `ask`. A server that does not know it has run nothing, and gets it first.
    pub(crate) async fn run_by<T, A>(
        &self,
        ask: impl Fn() -> A,
        redis: &MultiplexedConnection,
    ) -> Result<T, RedisError>
    where
        A: Future<Output = Result<T, RedisError>>,
    {
        match ask().await {
            Err(error) if error.code() == Some("NOSCRIPT") => {
                // Seldom, so it takes no room in each future.
                Box::pin(self.load(redis)).await?;
                ask().await
            }
            done => done,
        }
    }
}

/// Returns the command with these words, in pieces of the heap that need not grow.
pub(crate) fn command(words: &[&str]) -> Cmd {
    let bytes = words.iter().map(|word| word.len()).sum();
    let mut command = Cmd::with_capacity(words.len(), bytes);
    words.iter().for_each(|word| command.write_arg(word.as_bytes()));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_scripts_publish_in_their_slot() {
        for (plain, sharded) in
            [(&PLAIN.acquire, &SHARDED.acquire), (&PLAIN.rights, &SHARDED.rights)]
        {
            assert_ne!(plain.get_hash(), sharded.get_hash(), "it says something");
        }
        assert_eq!(PLAIN.inspect.get_hash(), SHARDED.inspect.get_hash());
        for source in [include_str!("scripts/queue.lua"), include_str!("scripts/rights.lua")] {
            let said = source.matches("PUBLISH").count();
            assert!(said > 0 && said == source.matches("'PUBLISH'").count(), "written otherwise");
        }
    }

    #[test]
    fn the_scripts_have_the_same_constants() {
        let client = [
            ("TOKEN_RETENTION", crate::limits::TOKEN_RETENTION),
            ("QUEUE_ENTRY_GRACE", lock_core::backend::QUEUE_ENTRY_GRACE),
        ];
        for (name, lasts) in client {
            let line = format!("local {name} = {} ", lasts.as_millis());
            assert!(include_str!("scripts/prelude.lua").contains(&line), "{line}");
        }
        let line = format!("local LIMIT = {} ", crate::limits::TOKEN_LIMIT);
        assert!(include_str!("scripts/prelude.lua").contains(&line), "{line}");
        let line = format!("local LAST_NUMBERS = {} ", crate::limits::LAST_TOKENS);
        assert!(include_str!("scripts/acquire.lua").contains(&line), "{line}");
        let line = "local CLAIM_LEASE = '3000' ";
        assert!(include_str!("scripts/queue.lua").contains(line));
    }
}
