//! One socket for all tasks: requests of many go out in one write, replies come back in their order.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, oneshot};

use super::{COMPARE_AND_DELETE, acquire_command, address, command, random_value};
use crate::worker::Lib;

pub(crate) struct MuxRedis {
    shared: Arc<Shared>,
    script: String,
}

#[derive(Default)]
struct Shared {
    line: Mutex<Line>,
    more: Notify,
}

#[derive(Default)]
struct Line {
    outgoing: Vec<u8>,
    awaiting: VecDeque<oneshot::Sender<String>>,
}

impl MuxRedis {
    pub(crate) async fn connect(url: &str) -> Result<Self, String> {
        let socket = TcpStream::connect(address(url)?).await.map_err(|e| e.to_string())?;
        socket.set_nodelay(true).map_err(|e| e.to_string())?;
        let (from, mut to) = socket.into_split();
        let mut from = BufReader::with_capacity(64 * 1024, from);
        let load = command(&["SCRIPT", "LOAD", COMPARE_AND_DELETE]);
        to.write_all(&load).await.map_err(|e| e.to_string())?;
        let mut digest = [0; "$40\r\n".len() + 42];
        from.read_exact(&mut digest).await.map_err(|e| e.to_string())?;
        let script = String::from_utf8_lossy(&digest[5..45]).into_owned();
        let shared = Arc::<Shared>::default();
        tokio::spawn(write(Arc::clone(&shared), to));
        tokio::spawn(read(Arc::clone(&shared), from));
        Ok(Self { shared, script })
    }

    /// Sends a command whose reply is one line, and demands that line.
    async fn expect(&self, request: &[u8], expected: &str) -> Result<(), String> {
        let (sender, reply) = oneshot::channel();
        {
            let mut line = self.shared.line();
            line.outgoing.extend_from_slice(request);
            line.awaiting.push_back(sender);
        }
        self.shared.more.notify_one();
        let reply = reply.await.map_err(|_| "the connection has ended".to_owned())?;
        match reply.trim_end() == expected {
            true => Ok(()),
            false => Err(format!("the server answers {reply:?}")),
        }
    }
}

impl Shared {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn write(shared: Arc<Shared>, mut to: OwnedWriteHalf) {
    loop {
        shared.more.notified().await;
        let bytes = std::mem::take(&mut shared.line().outgoing);
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

async fn read(shared: Arc<Shared>, mut from: BufReader<OwnedReadHalf>) {
    let mut reply = String::new();
    while matches!(from.read_line(&mut reply).await, Ok(1..)) {
        let Some(waiting) = shared.line().awaiting.pop_front() else { return };
        // Whoever asked may be gone.
        let _ = waiting.send(std::mem::take(&mut reply));
    }
    shared.line().awaiting.clear();
}

impl Lib for MuxRedis {
    type Lock = String;
    type Held = (String, String);

    fn lock(&self, name: &str) -> Result<String, String> {
        Ok(name.to_owned())
    }

    async fn acquire(&self, key: &String, ttl: Duration) -> Result<Self::Held, String> {
        let value = random_value();
        self.expect(&acquire_command(key, &value, ttl), "+OK").await?;
        Ok((key.clone(), value))
    }

    async fn release(&self, (key, value): Self::Held) -> Result<(), String> {
        self.expect(&command(&["EVALSHA", &self.script, "1", &key, &value]), ":1").await
    }
}
