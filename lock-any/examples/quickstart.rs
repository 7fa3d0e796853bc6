//! Pays an order, if no other process does: the README's program.
//!
//! Run it in two terminals: `cargo run -p lock-any --example quickstart`.

use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), lock_any::Error> {
    let locks = lock_any::connect("file:").await?; // or redis://…, zookeeper://…
    let lock = locks.lock("orders/42")?.ttl(Duration::from_secs(30));
    let Some(guard) = lock.try_acquire().await? else {
        println!("another process pays this order");
        return Ok(());
    };
    guard.run(pay_order()).await?; // drops the work and fails if the lock is lost
    guard.release().await?; // fails if the lock was lost before this
    locks.close().await?;
    Ok(())
}

async fn pay_order() {
    lock_any::clock::sleep(Duration::from_secs(3)).await;
    println!("order 42 is paid");
}
