//! Locks on the server of a Redis client that the program has already.
//!
//! Run it: `cargo run -p lock-redis --features redis-1 --example own_redis_client`, with the URL of
//! the server in `REDIS_URL`, or one on this host.

use std::error::Error;

use lock_core::Locker;
use lock_redis::{Config, Redis};
use redis::AsyncCommands;

/// The program's own use of Redis, and its locks.
pub(crate) struct App {
    data: redis::aio::MultiplexedConnection,
    locks: Locker,
}

impl App {
    pub(crate) async fn new(client: redis::Client) -> Result<Self, Box<dyn Error>> {
        let data = client.get_multiplexed_async_connection().await?;
        // The client's address, credentials, database and TCP settings, and a connection of the
        // locks' own. Without options, `Redis::from_client(&client)` is the same.
        let config = Config::from_connection_info(client.get_connection_info())?;
        let locks = Locker::new(Redis::connect(config.prefix("locks:")?).await?);
        Ok(Self { data, locks })
    }

    /// Adds to a balance, one request at a time.
    pub(crate) async fn deposit(&self, account: &str, amount: i64) -> Result<i64, Box<dyn Error>> {
        let lock = self.locks.lock(account)?;
        let balance = lock.run(async |_| {
            let mut data = self.data.clone();
            let before: Option<i64> = data.get(account).await?;
            let balance = before.unwrap_or(0) + amount;
            let () = data.set(account, balance).await?;
            Ok::<_, redis::RedisError>(balance)
        });
        Ok(balance.await?)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1".to_owned());
    let app = App::new(redis::Client::open(url)?).await?;
    println!("the balance is {}", app.deposit("account", 10).await?);
    app.locks.close().await?; // waits for releases in the background
    Ok(())
}
