//! A task that takes a lock on order, so that a fault can hit its holder at that moment.

use std::sync::atomic::Ordering;

use lock_core::clock::sleep;
use lock_core::{FencingToken, Locker, RenewalPolicy};
use lock_history::Held;
use tokio::sync::mpsc::UnboundedReceiver;

use super::workload::{Workload, record_loss};
use crate::lock_names::lock_name;
use crate::orders::Order;

impl Workload {
    /// Obeys orders to hold and to release until their sender is dropped.
    pub(super) async fn run_probe(mut self, locks: Locker, mut orders: UnboundedReceiver<Order>) {
        while let Some(order) = orders.recv().await {
            // An order to release a lock that was lost meanwhile needs no action.
            let Order::Hold(lock, renewed) = order else { continue };
            let Some(held) = self.acquire_until_quit(&locks, lock, renewed).await else { return };
            self.link.report("holds");
            self.hold(held, &mut orders).await;
            self.link.report("done");
        }
    }

    /// Repeats the acquisition until it succeeds. Returns `None` if the client quits first.
    async fn acquire_until_quit(
        &mut self,
        locks: &Locker,
        number: usize,
        renewed: bool,
    ) -> Option<Held> {
        let lock = locks.lock(lock_name(number)).expect("a good name").ttl(self.config.ttl);
        let lock = if renewed { lock } else { lock.renewal(RenewalPolicy::off()) };
        self.client.next.unrenewed = !renewed;
        while !self.state.quits.load(Ordering::SeqCst) {
            if let Ok(held) = self.client.acquire(&lock).await {
                record_loss(&held);
                return Some(held);
            }
            sleep(self.config.timeout / 20).await;
        }
        None
    }

    /// Holds the lock until the next order, or until a check of the guard reports its loss.
    async fn hold(&mut self, held: Held, orders: &mut UnboundedReceiver<Order>) {
        let name = held.guard.name().as_str().to_owned();
        let fence = held.guard.fencing_token().map(FencingToken::as_u64);
        let read = self.read(&name, fence);
        loop {
            tokio::select! {
                _ = orders.recv() => break,
                () = sleep(self.config.ttl / 8) => {}
            }
            if !self.client.check(&held) {
                break;
            }
        }
        // If the lock was lost, this write is too late: only the fencing token can show that.
        if let Some(read) = read {
            self.write(&name, &read);
        }
        let _ = self.client.release(held).await;
    }
}
