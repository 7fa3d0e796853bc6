//! Prints the time of an acquisition and its release in memory, in ns: the cost of core alone.
//!
//! With and without `--features metrics` in turn, this shows the cost of the metrics. The figure is
//! the slowest of the fastest 2 % of a thousand measurements, which other work on the machine has
//! not disturbed.

use lock_core::clock::Moment;
use lock_core::{Error, Locker, Memory};

const MEASUREMENTS: usize = 1000;
const PAIRS: u128 = 200;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let locks = Locker::new(Memory::new());
    let mut nanos = Vec::with_capacity(MEASUREMENTS);
    for _ in 0..MEASUREMENTS {
        let began = Moment::now();
        for _ in 0..PAIRS {
            locks.lock("orders/42")?.acquire().await?.release().await?;
        }
        nanos.push(Moment::now().saturating_since(began).as_nanos() / PAIRS);
    }
    nanos.sort_unstable();
    println!("{}", nanos[MEASUREMENTS / 50]);
    Ok(())
}
