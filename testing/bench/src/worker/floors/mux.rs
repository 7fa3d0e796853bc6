//! One socket for all tasks: many requests go out in one write, and replies come back in their
//! order.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, oneshot};

use super::{Length, Transport};

pub(crate) struct Mux(Arc<Shared>);

#[derive(Default)]
struct Shared {
    pipeline: Mutex<Pipeline>,
    more: Notify,
}

#[derive(Default)]
struct Pipeline {
    outgoing: Vec<u8>,
    awaiting: VecDeque<oneshot::Sender<Vec<u8>>>,
}

impl Transport for Mux {
    async fn connect(address: &str, length: Length) -> Result<Self, String> {
        let socket = TcpStream::connect(address).await.map_err(|e| e.to_string())?;
        socket.set_nodelay(true).map_err(|e| e.to_string())?;
        let (from, to) = socket.into_split();
        let shared = Arc::<Shared>::default();
        tokio::spawn(write(Arc::clone(&shared), to));
        tokio::spawn(read(Arc::clone(&shared), from, length));
        Ok(Self(shared))
    }

    async fn ask(&self, request: &[u8]) -> Result<Vec<u8>, String> {
        let (sender, reply) = oneshot::channel();
        {
            let mut pipeline = self.0.pipeline();
            pipeline.outgoing.extend_from_slice(request);
            pipeline.awaiting.push_back(sender);
        }
        self.0.more.notify_one();
        reply.await.map_err(|_| "the server has closed the connection".to_owned())
    }
}

impl Shared {
    fn pipeline(&self) -> MutexGuard<'_, Pipeline> {
        self.pipeline.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn write(shared: Arc<Shared>, mut to: OwnedWriteHalf) {
    loop {
        shared.more.notified().await;
        let bytes = std::mem::take(&mut shared.pipeline().outgoing);
        if to.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

async fn read(shared: Arc<Shared>, mut from: OwnedReadHalf, length: Length) {
    let mut bytes = Vec::with_capacity(64 * 1024);
    while matches!(from.read_buf(&mut bytes).await, Ok(1..)) {
        let mut done = 0;
        let mut pipeline = shared.pipeline();
        while let Some(length) = length(&bytes[done..]) {
            if let Some(waiting) = pipeline.awaiting.pop_front() {
                // The task that asked may have ended.
                let _ = waiting.send(bytes[done..done + length].to_vec());
            }
            done += length;
        }
        drop(pipeline);
        bytes.drain(..done);
    }
    shared.pipeline().awaiting.clear();
}
