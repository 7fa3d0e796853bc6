//! A task that takes a lock on order, so that a fault can hit its holder at that moment.

use std::sync::atomic::Ordering;

use lock_core::clock::sleep;
use lock_core::{FencingToken, Locker, RenewalPolicy};
use lock_history::Held;
use tokio::sync::mpsc::UnboundedReceiver;

use super::workload::{Workload, record_loss};
use crate::lock_names::lock_name;

/// An order to the probe.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cue {
    Hold { lock: usize, renewed: bool },
    Release,
}

impl Workload {
    /// Obeys cues until their sender is dropped.
    pub(super) async fn run_probe(mut self, locks: Locker, mut cues: UnboundedReceiver<Cue>) {
        while let Some(cue) = cues.recv().await {
            // A cue to release a lock that was lost meanwhile needs no action.
            let Cue::Hold { lock, renewed } = cue else { continue };
            let Some(held) = self.acquire_until_quit(&locks, lock, renewed).await else { return };
            self.link.report("holds");
            self.hold(held, &mut cues).await;
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
        self.client.leaves_unrenewed(!renewed);
        while !self.state.quits.load(Ordering::SeqCst) {
            if let Ok(held) = self.client.acquire(&lock).await {
                record_loss(&held);
                return Some(held);
            }
            sleep(self.config.timeout / 20).await;
        }
        None
    }

    /// Holds the lock until the next cue, or until a check of the guard reports its loss.
    async fn hold(&mut self, held: Held, cues: &mut UnboundedReceiver<Cue>) {
        let name = held.guard.name().as_str().to_owned();
        let fence = held.guard.fencing_token().map(FencingToken::as_u64);
        let read = self.read(&name, fence);
        loop {
            tokio::select! {
                _ = cues.recv() => break,
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
