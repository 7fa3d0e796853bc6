//! Commands that a cluster needs in the same write before a script.

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{ErrorKind as RedisKind, FromRedisValue, Pipeline, RedisError, Value as Answer};

use crate::scripts::Call;

/// Commands to send in the same write before a script, such as `ASKING`.
#[derive(Clone, Copy)]
pub(crate) struct ClusterPrelude<'a> {
    /// That we know that the keys are on their way to this member.
    pub(crate) asking: bool,
    /// The channel to subscribe to.
    pub(crate) channel: Option<&'a str>,
}

impl ClusterPrelude<'_> {
    pub(crate) async fn before<T: FromRedisValue>(
        self,
        call: &Call,
        redis: &MultiplexedConnection,
    ) -> Result<T, RedisError> {
        call.run_by(|| self.once_before(call, redis.clone()), redis).await
    }

    async fn once_before<T: FromRedisValue>(
        self,
        call: &Call,
        mut redis: MultiplexedConnection,
    ) -> Result<T, RedisError> {
        let mut pipe = redis::pipe();
        if let Some(channel) = self.channel {
            self.ask(&mut pipe);
            pipe.cmd("SSUBSCRIBE").arg(channel);
        }
        self.ask(&mut pipe);
        pipe.add_command(call.command().clone());
        let mut answers = redis.req_packed_commands(&pipe, 0, pipe.len()).await?;
        // If the script was refused, so much is known; it is not if anything else was.
        let answer = answers.pop().unwrap_or(Answer::Nil).extract_error()?;
        let refused = answers.into_iter().find_map(|before| before.extract_error().err());
        if let Some(refused) = refused {
            let why = "a script ran, and what came before it did not";
            return Err(RedisError::from((RedisKind::Io, why, refused.to_string())));
        }
        Ok(redis::from_redis_value(answer)?)
    }

    pub(crate) fn ask(self, pipe: &mut Pipeline) {
        if self.asking {
            pipe.cmd("ASKING");
        }
    }
}
