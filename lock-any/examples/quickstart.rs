//! Pays an order, if no other process does: the README's program.
//!
//! Run it in two terminals: `cargo run -p lock-any --example quickstart`.

use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = lock_any::connect("file:").await?; // or redis://…, zookeeper://…
    let lock = locks.lock("orders/42")?.ttl(Duration::from_secs(30));
    // Acquires, runs, releases; the work returns a Result, and is dropped if the lock is lost.
    let paid = lock.try_run(async |guard| pay_order(guard.require_token()?.as_i64()).await).await?;
    if paid.is_none() {
        println!("another process pays this order");
    }
    locks.close().await?; // waits for releases in the background
    Ok(())
}

/// Stands for `UPDATE orders SET paid = true, fence = $1 WHERE id = 42 AND fence <= $1`.
async fn pay_order(fence: i64) -> Result<(), lock_any::Error> {
    lock_any::clock::sleep(Duration::from_secs(3)).await;
    println!("order 42 is paid, under token {fence}");
    Ok(())
}
