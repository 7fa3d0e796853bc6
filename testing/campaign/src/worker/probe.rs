//! A task that takes a lock when it is told to, so that something can happen to it right then.

use std::sync::atomic::Ordering;

use lock_core::clock::sleep;
use lock_core::{FencingToken, Locker, RenewalPolicy};
use lock_history::Held;
use tokio::sync::mpsc::UnboundedReceiver;

use super::workload::{Workload, tell_of_loss};
use crate::collector::lock_name;

/// What it is told.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cue {
    Hold { lock: usize, renewed: bool },
    ReleaseMode,
}

impl Workload {
    /// Until nobody is there any more who could tell it anything.
    pub(super) async fn run_probe(mut self, locks: Locker, mut cues: UnboundedReceiver<Cue>) {
        while let Some(cue) = cues.recv().await {
            // What was lost needs no letting go.
            let Cue::Hold { lock, renewed } = cue else { continue };
            let Some(held) = self.insist(&locks, lock, renewed).await else { return };
            self.link.says("holds");
            self.hold(held, &mut cues).await;
            self.link.says("done");
        }
    }

    async fn insist(&mut self, locks: &Locker, number: usize, renewed: bool) -> Option<Held> {
        let lock = locks.lock(lock_name(number)).expect("a good name").ttl(self.duty.ttl);
        let lock = if renewed { lock } else { lock.renewal(RenewalPolicy::off()) };
        self.client.leaves_unrenewed(!renewed);
        while !self.state.quits.load(Ordering::SeqCst) {
            if let Ok(held) = self.client.acquire(&lock).await {
                tell_of_loss(&held);
                return Some(held);
            }
            sleep(self.duty.timeout / 20).await;
        }
        None
    }

    /// Looks again and again, and believes what it is told.
    async fn hold(&mut self, held: Held, cues: &mut UnboundedReceiver<Cue>) {
        let name = held.guard.name().as_str().to_owned();
        let fence = held.guard.fencing_token().map(FencingToken::as_u64);
        let read = self.read(&name, fence);
        loop {
            tokio::select! {
                _ = cues.recv() => break,
                () = sleep(self.duty.ttl / 8) => {}
            }
            if !self.client.check(&held) {
                break;
            }
        }
        // Too late if it was lost: only the fence can tell.
        if let Some(read) = read {
            self.write(&name, &read);
        }
        let _ = self.client.release(held).await;
    }
}
