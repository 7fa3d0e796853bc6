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
    let mut failed = 0;
    for order in unpaid {
        let lock = locks.lock(format!("orders/{order}"))?;
        match lock.try_run(async |guard| pay(&database, order, guard).await).await {
            Ok(Some(true)) => println!("order {order} is paid"),
            Ok(Some(false)) => println!("order {order} was paid already"),
            Ok(None) => println!("order {order} is left to another process"),
            Err(error) => {
                eprintln!("order {order}: {error:#}");
                failed += 1;
            }
        }
    }
    locks.close().await?;
    anyhow::ensure!(failed == 0, "{failed} orders failed");
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

/// Pays an order. Returns false if it was paid already.
async fn pay(database: &SqlitePool, order: i64, guard: &LockGuard) -> Result<bool, PayError> {
    let token = guard.require_token()?;
    let stale = || PayError::Stale { order, token };
    // First the token: no earlier holder can write any more, so the state read here stays true.
    let store = "UPDATE orders SET fence = $1 WHERE id = $2 AND fence <= $1 RETURNING paid";
    let store = sqlx::query_scalar(store).bind(token.as_i64()).bind(order);
    if store.fetch_optional(database).await?.ok_or_else(stale)? {
        return Ok(false);
    }
    let update = "UPDATE orders SET paid = true WHERE id = $2 AND fence = $1";
    let updated = sqlx::query(update).bind(token.as_i64()).bind(order).execute(database).await?;
    if updated.rows_affected() == 0 {
        return Err(stale());
    }
    Ok(true)
}
