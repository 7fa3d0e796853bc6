//! A batch job that marks each unpaid order as paid, with a write that the row itself checks.
//!
//! `cargo run --bin batch -- --locks redis://localhost --database sqlite:orders.db`

use clap::Parser;
use lock_any::{FencingToken, LockGuard};
use sqlx::SqlitePool;

/// Marks each unpaid order as paid.
#[derive(Parser)]
struct Options {
    /// The locks, as redis://host
    #[arg(long, env, default_value = "file:")]
    locks: String,
    /// The database, as sqlite:orders.db
    #[arg(long)]
    database: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let locks = lock_any::connect(&options.locks).await?;
    let database = SqlitePool::connect(&options.database).await?;
    let unpaid: Vec<i64> = sqlx::query_scalar("SELECT id FROM orders WHERE NOT paid ORDER BY id")
        .fetch_all(&database)
        .await?;
    for order in unpaid {
        let lock = locks.lock(format!("orders/{order}"))?;
        match lock.try_run(async |guard| pay(&database, order, guard).await).await? {
            Some(()) => println!("order {order} is paid"),
            None => println!("order {order} is left to another process"),
        }
    }
    locks.close().await?;
    Ok(())
}

/// The failure of a payment.
#[derive(Debug, thiserror::Error)]
enum PayError {
    #[error(transparent)]
    Lock(#[from] lock_any::Error),
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error("order {order} has seen a token newer than {token}")]
    Stale { order: i64, token: FencingToken },
}

/// Pays an order, unless its row has seen a newer token.
async fn pay(database: &SqlitePool, order: i64, guard: &LockGuard) -> Result<(), PayError> {
    let token = guard.require_token()?;
    let update = "UPDATE orders SET paid = true, fence = $1 WHERE id = $2 AND fence <= $1";
    let updated = sqlx::query(update).bind(token.as_i64()).bind(order).execute(database).await?;
    if updated.rows_affected() == 0 {
        return Err(PayError::Stale { order, token });
    }
    Ok(())
}
