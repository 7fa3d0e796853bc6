//! The requests that callers make at the same time, sent together.
//!
//! Callers poll their verbs on threads of their own, and the connection belongs to the executor's.
//! The Redis library takes memory for each request on the one thread and returns it on the other,
//! and then both wait for the allocator. So callers leave their requests to a task beside the
//! connection. It sends all that are there as one pipeline, and waits for none to come. A request
//! that is the only one needs no task.
//!
//! The answers to a batch are delivered when the last one has come, and are lost if the connection
//! breaks before. So batches are small, and a command that takes longer than a script has a
//! pipeline to itself. Requests of this task are sent in the order of the calls. Others may
//! overtake them.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::vec;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind as RedisKind, Pipeline, RedisError, Value as Answer};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, unconstrained};

use crate::connection::clients::DriverTask;

/// The most requests of one batch.
const MAX_BATCH: usize = 64;

/// The most batches without answers. Further requests wait, and leave when their callers do.
const MAX_BATCHES: usize = 64;

/// The way to the task beside a connection. With it, the task ends.
pub(crate) struct Batcher {
    pub(crate) redis: MultiplexedConnection,
    /// The number of requests without answers.
    under_way: AtomicUsize,
    requests: mpsc::Sender<BatchedRequest>,
    _task: DriverTask,
}

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
    pub(crate) fn over(connection: MultiplexedConnection) -> Self {
        let redis = connection.clone();
        let (sender, mut requests) = mpsc::channel(MAX_BATCH * MAX_BATCHES);
        let task = tokio::spawn(async move {
            // They end with this task, whose connection is wanted no more: callers that are gone
            // would keep it open until it answers them.
            let mut sent = JoinSet::new();
            loop {
                let mut batch = Vec::new();
                if requests.recv_many(&mut batch, MAX_BATCH).await == 0 {
                    return;
                }
                while sent.try_join_next().is_some() {}
                if sent.len() == MAX_BATCHES {
                    sent.join_next().await;
                }
                batch.retain(BatchedRequest::is_wanted);
                if batch.is_empty() {
                    continue;
                }
                // Polled here first, which sends it: tasks may start in any order. Once this task
                // has used up its turn, that poll would do nothing.
                let mut sending = Box::pin(send(batch, redis.clone()));
                let first_poll = poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx)));
                if unconstrained(first_poll).await.is_pending() {
                    sent.spawn(sending);
                }
            }
        });
        let (redis, under_way) = (connection, AtomicUsize::new(0));
        Self { redis, under_way, requests: sender, _task: DriverTask::of(&task) }
    }

    /// Sends a request: through the task, unless it is the only one.
    pub(crate) async fn ask(&self, commands: &Arc<Commands>) -> Result<Answers, RedisError> {
        let before = self.under_way.fetch_add(1, Ordering::Relaxed);
        let _answered = UnderWay(&self.under_way);
        if before == 0 {
            // Larger than the other way, so it takes no room in its future.
            return Box::pin(ask_alone(commands, self.redis.clone())).await;
        }
        let (sender, answers) = oneshot::channel();
        let commands = Arc::clone(commands);
        match self.requests.send(BatchedRequest { commands, answers: sender }).await {
            Ok(()) => answers.await.unwrap_or_else(|_| Err(no_runtime())),
            Err(_) => Err(no_runtime()),
        }
    }
}

struct UnderWay<'a>(&'a AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl BatchedRequest {
    /// Returns true unless the caller is gone.
    fn is_wanted(&self) -> bool {
        !self.answers.is_closed()
    }
}

/// The task ends before its senders with the runtime, and so does the connection's own.
fn no_runtime() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

/// Sends one request. If the connection fails, the error says why if the request has one command
/// and is the oldest without an answer.
async fn ask_alone(
    commands: &Commands,
    mut redis: MultiplexedConnection,
) -> Result<Answers, RedisError> {
    if commands.second.is_none() {
        let first = redis.send_packed_command(&commands.first).await?;
        return Ok(Answers { first, second: None });
    }
    let mut answers = ask_all(&[commands], redis).await?;
    Ok(next_of(&mut answers, commands))
}

/// Sends requests as one pipeline, and returns as many answers as there are commands.
async fn ask_all(
    requests: &[&Commands],
    mut redis: MultiplexedConnection,
) -> Result<vec::IntoIter<Answer>, RedisError> {
    let mut pipeline = Pipeline::with_capacity(2 * requests.len());
    for Commands { first, second } in requests {
        pipeline.add_command(first.clone());
        if let Some(second) = second {
            pipeline.add_command(second.clone());
        }
    }
    let answers = redis.send_packed_commands(&pipeline, 0, pipeline.len()).await?;
    match answers.len() == pipeline.len() {
        true => Ok(answers.into_iter()),
        false => {
            let why = "the library returned another number of answers";
            Err(RedisError::from((RedisKind::UnexpectedReturnType, why)))
        }
    }
}

fn next_of(answers: &mut vec::IntoIter<Answer>, commands: &Commands) -> Answers {
    let mut next = || answers.next().unwrap_or(Answer::Nil);
    Answers { first: next(), second: commands.second.is_some().then(next) }
}

async fn send(batch: Vec<BatchedRequest>, redis: MultiplexedConnection) {
    let requests: Vec<_> = batch.iter().map(|request| &*request.commands).collect();
    let mut answered = ask_all(&requests, redis).await;
    for BatchedRequest { commands, answers } in batch {
        let own = match &mut answered {
            Ok(all) => Ok(next_of(all, &commands)),
            Err(error) => Err(error.clone()),
        };
        drop(commands);
        // The caller may be gone.
        let _ = answers.send(own);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};

    use lock_conformance::helpers::eventually;
    use redis::{AsyncConnectionConfig, Client};
    use test_servers::{Redis as Server, RedisOptions};
    use tokio::runtime::Handle;

    use super::*;
    use crate::topology::servers::all;

    async fn connect(url: &str) -> MultiplexedConnection {
        let settings = AsyncConnectionConfig::new().set_response_timeout(None);
        let settings = settings.set_pipeline_buffer_size(MAX_BATCHES);
        let client = Client::open(url).unwrap();
        client.get_multiplexed_async_connection_with_config(&settings).await.unwrap()
    }

    fn echo(text: &str) -> Cmd {
        let mut echo = redis::cmd("ECHO");
        echo.arg(text);
        echo
    }

    fn alone(first: Cmd) -> Arc<Commands> {
        Arc::new(Commands { first, second: None })
    }

    async fn poll_once<T>(mut asking: Pin<&mut impl Future<Output = T>>) {
        let asked = poll_fn(|cx| Poll::Ready(asking.as_mut().poll(cx).is_pending()));
        assert!(asked.await, "there is no answer yet");
    }

    fn push(nth: usize) -> Cmd {
        let mut push = redis::cmd("RPUSH");
        push.arg("list").arg(nth);
        push
    }

    async fn list(batcher: &Batcher) -> Vec<usize> {
        let mut range = redis::cmd("LRANGE");
        let answers = batcher.ask(&alone(range.arg("list").arg(0).arg(-1).clone())).await;
        redis::from_redis_value(answers.unwrap().first).unwrap()
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
                        batcher.ask(&alone(echo(&first))).await.unwrap();
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
                _ => {
                    let both = commands(echo(&first), Some(echo(&second)));
                    poll_once(pin!(batcher.ask(&both))).await;
                }
            }
        };
        all((0..4 * MAX_BATCH + 1).map(ask)).await;
    }

    #[tokio::test]
    async fn a_request_is_sent_only_if_its_caller_is_still_there() {
        let server = Server::start(RedisOptions::new());
        let batcher = Batcher::over(connect(&server.url()).await);
        let (here, gone) = (alone(push(1)), alone(push(2)));
        let mut asking = pin!(batcher.ask(&here));
        poll_once(asking.as_mut()).await;
        poll_once(pin!(batcher.ask(&gone))).await;
        asking.await.unwrap();
        assert_eq!(list(&batcher).await, [1]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn requests_are_sent_in_order() {
        let server = Server::start(RedisOptions::new());
        let batcher = Arc::new(Batcher::over(connect(&server.url()).await));
        let asking = tokio::spawn({
            let batcher = Arc::clone(&batcher);
            async move {
                let requests: Vec<_> = (0..3000).map(|nth| alone(push(nth))).collect();
                let asking = requests.iter().map(|request| batcher.ask(request));
                all(asking).await.into_iter().for_each(|answers| drop(answers.unwrap()));
            }
        });
        let request = alone(echo("gone"));
        while !asking.is_finished() {
            // Requests of callers that are gone are batches that are not sent.
            let mut gone: Vec<_> =
                (0..MAX_BATCH).map(|_| Box::pin(batcher.ask(&request))).collect();
            for asking in &mut gone {
                let _: Poll<_> = poll_fn(|cx| Poll::Ready(asking.as_mut().poll(cx))).await;
            }
            drop(gone);
            tokio::task::yield_now().await;
        }
        asking.await.unwrap();
        assert!(list(&batcher).await.is_sorted());
    }

    #[tokio::test]
    async fn callers_that_are_gone_keep_no_connection_open() {
        let server = Server::start(RedisOptions::new());
        let batcher = Batcher::over(connect(&server.url()).await);
        let tasks = || Handle::current().metrics().num_alive_tasks();
        let before = tasks();
        server.stop();
        let request = alone(echo("n"));
        let mut asking = Vec::new();
        // The first one is sent without a task, and the last one waits.
        for nth in 0..MAX_BATCHES + 2 {
            asking.push(Box::pin(batcher.ask(&request)));
            poll_once(asking[nth].as_mut()).await;
            eventually(|| tasks() == before + nth.min(MAX_BATCHES)).await;
        }
        drop(asking);
        drop(batcher);
        eventually(|| tasks() == 0).await;
    }
}
