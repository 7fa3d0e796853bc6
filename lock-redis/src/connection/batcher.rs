//! The requests that callers make at the same time, sent together.
//!
//! Callers poll their verbs on threads of their own, and the connection belongs to the executor's.
//! The Redis library takes memory for each request on the one thread and returns it on the other,
//! and then both wait for the allocator. So callers leave their requests to a task beside the
//! connection. It sends all that are there as one pipeline, and waits for none to come.
//!
//! The answers to a batch arrive together: when the last one has come, or the connection has
//! broken. The server executes the commands of one write in a row, and each takes milliseconds at
//! most. A command that takes longer has a pipeline to itself.

use std::io;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, Value as Answer};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// The most requests of one batch.
const MAX_BATCH: usize = 256;

/// The way to the task beside a connection. With it, the task ends.
pub(crate) struct Batcher(mpsc::UnboundedSender<BatchedRequest>);

/// The commands of one request, which are sent in one write.
#[derive(Clone)]
pub(crate) struct Commands {
    pub(crate) first: Cmd,
    pub(crate) second: Option<Cmd>,
}

/// The answers to the commands of a request: values, or errors of the server.
pub(crate) struct Answers {
    pub(crate) first: Answer,
    pub(crate) second: Option<Answer>,
}

struct BatchedRequest {
    /// Shared, so that the caller returns the memory that it has taken.
    commands: Arc<Commands>,
    answers: oneshot::Sender<Result<Answers, RedisError>>,
}

impl Batcher {
    /// Starts the task for this connection.
    pub(crate) fn over(redis: MultiplexedConnection) -> Self {
        let (sender, mut requests) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            // They end with this task, whose connection is wanted no more: callers that are gone
            // would keep it open until it answers them.
            let mut sent = JoinSet::new();
            loop {
                let mut batch = Vec::new();
                if requests.recv_many(&mut batch, MAX_BATCH).await == 0 {
                    return;
                }
                while sent.try_join_next().is_some() {}
                sent.spawn(send(batch, redis.clone()));
            }
        });
        Self(sender)
    }

    /// Sends a request.
    pub(crate) async fn ask(&self, commands: &Arc<Commands>) -> Result<Answers, RedisError> {
        let (sender, answers) = oneshot::channel();
        let commands = Arc::clone(commands);
        let sent = self.0.send(BatchedRequest { commands, answers: sender });
        match sent {
            Ok(()) => answers.await.unwrap_or_else(|_| Err(no_runtime())),
            Err(_) => Err(no_runtime()),
        }
    }
}

/// The task ends before its senders only with the runtime, and so does the connection's own.
fn no_runtime() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

async fn send(batch: Vec<BatchedRequest>, mut redis: MultiplexedConnection) {
    let answered = match &*batch {
        // The error of a pipeline would not say why the connection failed.
        [BatchedRequest { commands, .. }] if commands.second.is_none() => {
            redis.send_packed_command(&commands.first).await.map(|answer| vec![answer])
        }
        _ => {
            let pipeline = pipeline(&batch);
            redis.send_packed_commands(&pipeline, 0, pipeline.len()).await
        }
    };
    let mut answered = answered.map(Vec::into_iter);
    for BatchedRequest { commands, answers } in batch {
        let own = match &mut answered {
            Ok(all) => {
                let mut next = || all.next().unwrap_or(Answer::Nil);
                Ok(Answers { first: next(), second: commands.second.is_some().then(next) })
            }
            Err(error) => Err(error.clone()),
        };
        drop(commands);
        // The caller may be gone.
        let _ = answers.send(own);
    }
}

fn pipeline(batch: &[BatchedRequest]) -> Pipeline {
    let mut pipeline = Pipeline::with_capacity(2 * batch.len());
    for BatchedRequest { commands, .. } in batch {
        pipeline.add_command(commands.first.clone());
        if let Some(second) = &commands.second {
            pipeline.add_command(second.clone());
        }
    }
    pipeline
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;

    use lock_conformance::helpers::eventually;
    use redis::{AsyncConnectionConfig, Client};
    use test_servers::{Redis as Server, RedisOptions};
    use tokio::runtime::Handle;

    use super::*;
    use crate::topology::servers::all;

    async fn connect(url: &str) -> MultiplexedConnection {
        let settings = AsyncConnectionConfig::new().set_response_timeout(None);
        let client = Client::open(url).unwrap();
        client.get_multiplexed_async_connection_with_config(&settings).await.unwrap()
    }

    fn echo(text: &str) -> Cmd {
        let mut echo = redis::cmd("ECHO");
        echo.arg(text);
        echo
    }

    /// Polls `asking` once, and drops it.
    async fn abandon<T>(asking: impl Future<Output = T>) {
        let mut asking = pin!(asking);
        let asked = poll_fn(|cx| Poll::Ready(asking.as_mut().poll(cx).is_pending()));
        assert!(asked.await);
    }

    #[tokio::test]
    async fn each_request_gets_its_own_answers() {
        let server = Server::start(RedisOptions::new());
        let batcher = Batcher::over(connect(&server.url()).await);
        let text = |answer: Option<Answer>| answer.map(redis::from_redis_value::<String>);
        let ask = async |nth: usize| {
            let [first, second] = [format!("{nth}"), format!("{nth} too")];
            let commands = |first, second| Arc::new(Commands { first, second });
            match nth % 4 {
                0 => {
                    let Answers { first: answer, second } =
                        batcher.ask(&commands(echo(&first), None)).await.unwrap();
                    assert_eq!(text(Some(answer)), Some(Ok(first)));
                    assert_eq!(second, None);
                }
                1 => {
                    let both = commands(echo(&first), Some(echo(&second)));
                    let answers = batcher.ask(&both).await.unwrap();
                    assert_eq!(text(Some(answers.first)), Some(Ok(first)));
                    assert_eq!(text(answers.second), Some(Ok(second)));
                }
                2 => {
                    let refused = commands(redis::cmd("UNKNOWN"), Some(echo(&second)));
                    let answers = batcher.ask(&refused).await.unwrap();
                    assert!(answers.first.extract_error().is_err(), "there is no such command");
                    assert_eq!(text(answers.second), Some(Ok(second)));
                }
                _ => abandon(batcher.ask(&commands(echo(&first), Some(echo(&second))))).await,
            }
        };
        all((0..4 * MAX_BATCH + 1).map(ask)).await;
    }

    #[tokio::test]
    async fn callers_that_are_gone_keep_no_connection_open() {
        let server = Server::start(RedisOptions::new());
        let batcher = Batcher::over(connect(&server.url()).await);
        let tasks = || Handle::current().metrics().num_alive_tasks();
        let before = tasks();
        server.stop();
        abandon(batcher.ask(&Arc::new(Commands { first: echo("n"), second: None }))).await;
        eventually(|| tasks() > before).await;
        drop(batcher);
        eventually(|| tasks() == 0).await;
    }
}
