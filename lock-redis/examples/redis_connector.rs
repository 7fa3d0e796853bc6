//! Locks on a Redis server behind a tunnel, which a connector enters.
//!
//! Open the tunnel: `ssh -N -L /tmp/redis.sock:redis.internal:6379 gateway.example.com`. Run the
//! program: `cargo run -p lock-redis --example redis_connector`.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use lock_core::Locker;
use lock_redis::{Config, Connector, Redis, ServerAddress};
use tokio::net::UnixStream;

/// The host at the far end of the tunnel.
const FAR_END: &str = "redis.internal";

/// A tunnel to one server. Its near end is a Unix socket.
struct Tunnel {
    near_end: PathBuf,
}

impl Connector for Tunnel {
    type Stream = UnixStream;

    async fn connect(&self, address: &ServerAddress) -> io::Result<UnixStream> {
        match address {
            ServerAddress::Tcp { host, port: 6379 } if host == FAR_END => {
                UnixStream::connect(&self.near_end).await
            }
            // Never another server than the one that is asked for.
            _ => Err(io::Error::other(format!("no tunnel leads to {address}"))),
        }
    }
}

pub(crate) async fn connect(near_end: PathBuf) -> Result<Locker, lock_core::Error> {
    let config = Config::new(&format!("redis://{FAR_END}"))?.connector(Tunnel { near_end });
    Ok(Locker::new(Redis::connect(config).await?))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let locks = connect("/tmp/redis.sock".into()).await?;
    let lock = locks.lock("report")?;
    let written = lock.try_run(async |_| write_report()).await?;
    if written.is_none() {
        println!("another process writes the report");
    }
    locks.close().await?; // waits for releases in the background
    Ok(())
}

fn write_report() -> Result<(), io::Error> {
    println!("the report is written");
    Ok(())
}
