//! Shows why a write carries the fencing token: the late write of an earlier holder is refused.
//!
//! Run it: `cargo run -p lock-any --example fenced_write`.

use lock_any::{Error, FenceGate, FencingToken};

/// Stands for a table: `UPDATE orders SET state = $1, fence = $2 WHERE id = 42 AND fence <= $2`.
struct Orders(FenceGate<Vec<&'static str>>);

impl Orders {
    fn write(&self, state: &'static str, token: FencingToken) -> Result<(), Error> {
        self.0.admit(token, |states| states.push(state))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let orders = Orders(FenceGate::new(Vec::new()));
    let locks = lock_any::connect("file:").await?; // or redis://…, zookeeper://…
    let lock = locks.lock("orders/42")?;

    let earlier = lock.run(async |guard| guard.require_token()).await?;
    lock.run(async |guard| orders.write("shipped", guard.require_token()?)).await?;
    // A write of the earlier holder arrives now: it was delayed on the network.
    match orders.write("paid", earlier) {
        Err(refused) => println!("{refused}"),
        Ok(()) => return Err("the late write of an earlier holder was accepted".into()),
    }
    locks.close().await?;
    Ok(())
}
