//! Pays an order once, however many processes try, with a resource that checks fencing tokens.
//!
//! Run it in two terminals: `cargo run -p lock-any --example orders`.

use std::time::Duration;

use lock_any::{Error, FenceGate, FencingToken, clock};

/// Stands for a resource that checks tokens. A database does the same with
/// `UPDATE … SET fence = $token WHERE id = $id AND fence <= $token`.
struct Store(FenceGate<Vec<String>>);

impl Store {
    async fn write(&self, row: &str, token: Option<FencingToken>) -> Result<(), Error> {
        let token = token.expect("this backend has fencing tokens");
        println!("writing {row:?} under token {token}");
        clock::sleep(Duration::from_secs(3)).await;
        self.0.admit(token, |rows| rows.push(row.to_owned()))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let store = Store(FenceGate::new(Vec::new()));
    let row = "order 42 is paid";

    let locks = lock_any::connect("file:").await?; // or memory: … one URL, one backend
    let guard = locks.lock("orders/42")?.ttl(Duration::from_secs(30)).acquire().await?;
    let token = guard.fencing_token(); // grows with every holder
    let work = store.write(row, token); // the store refuses a token lower than one it saw
    guard.run(work).await??; // the work is dropped at its next await if the lock is lost
    guard.release().await?; // Ok exactly if we still held it
    locks.close().await?; // waits for releases in the background
    Ok(())
}
