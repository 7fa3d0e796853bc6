//! One socket for all tasks: requests of many go out in one write, replies come back in their order.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, oneshot};

use super::{Dialect, address, refused};
use lock_bench_worker::Lib;

pub(crate) struct Mux<D> {
    shared: Arc<Shared>,
    dialect: D,
}

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

impl<D: Dialect> Mux<D> {
    pub(crate) async fn connect(url: &str) -> Result<Self, String> {
        let socket = TcpStream::connect(address::<D>(url)?).await.map_err(|e| e.to_string())?;
        socket.set_nodelay(true).map_err(|e| e.to_string())?;
        let (from, to) = socket.into_split();
        let shared = Arc::<Shared>::default();
        tokio::spawn(write(Arc::clone(&shared), to));
        tokio::spawn(read::<D>(Arc::clone(&shared), from));
        let reply = shared.ask(&D::greeting()).await?;
        let dialect = D::greeted(&reply).ok_or_else(|| refused(&reply))?;
        Ok(Self { shared, dialect })
    }
}

impl Shared {
    async fn ask(&self, request: &[u8]) -> Result<Vec<u8>, String> {
        let (sender, reply) = oneshot::channel();
        {
            let mut pipeline = self.pipeline();
            pipeline.outgoing.extend_from_slice(request);
            pipeline.awaiting.push_back(sender);
        }
        self.more.notify_one();
        reply.await.map_err(|_| "the server has closed the connection".to_owned())
    }

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

async fn read<D: Dialect>(shared: Arc<Shared>, mut from: OwnedReadHalf) {
    let mut bytes = Vec::with_capacity(64 * 1024);
    while matches!(from.read_buf(&mut bytes).await, Ok(1..)) {
        let mut done = 0;
        let mut pipeline = shared.pipeline();
        while let Some(length) = D::length(&bytes[done..]) {
            if let Some(waiting) = pipeline.awaiting.pop_front() {
                // Whoever asked may be gone.
                let _ = waiting.send(bytes[done..done + length].to_vec());
            }
            done += length;
        }
        drop(pipeline);
        bytes.drain(..done);
    }
    shared.pipeline().awaiting.clear();
}

impl<D: Dialect> Lib for Mux<D> {
    type Lock = String;
    type Held = D::Held;

    fn lock(&self, name: &str) -> Result<String, String> {
        Ok(name.to_owned())
    }

    async fn acquire(&self, key: &String, ttl: Duration) -> Result<D::Held, String> {
        let (request, owner) = self.dialect.acquire(key, ttl);
        let reply = self.shared.ask(&request).await?;
        self.dialect.acquired(key, owner, &reply).ok_or_else(|| refused(&reply))
    }

    async fn release(&self, held: D::Held) -> Result<(), String> {
        let reply = self.shared.ask(&self.dialect.release(&held)).await?;
        self.dialect.released(&reply).then_some(()).ok_or_else(|| refused(&reply))
    }
}
