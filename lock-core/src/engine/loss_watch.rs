//! The watch for a loss while a lock is held, where the backend pushes losses.
//!
//! One task for each lock, from when it has been held for a moment until it ends. It renews nothing
//! by itself: it makes the next renewal due.

use std::sync::Arc;
use std::time::Duration;

use super::hold::Hold;
use super::shared::unpanicking;
use crate::backend::Fault;
use crate::clock::{Moment, sleep};
use crate::entropy;

/// From a wake to the next wait. Doubled by each wake that follows soon, up to the interval of
/// renewals: so a backend that wakes for nothing at most doubles them.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// Listens until `hold` has ended.
pub(crate) fn watch(hold: Arc<Hold>) {
    let executor = hold.engine.executor().clone();
    executor.handle().spawn(async move {
        tokio::select! {
            biased;
            _ = hold.ended.wait() => {}
            () = renew_on_push(&hold) => {}
            () = hold.follow_limit() => {}
        }
    });
}

async fn renew_on_push(hold: &Arc<Hold>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let began = Moment::now();
        // A failed wait is no evidence of a loss: renewals decide.
        if wait_lost(hold).await.is_ok() {
            hold.renew_at_once();
        }
        if Moment::now().saturating_since(began) > hold.interval() {
            pause = FIRST_PAUSE;
        }
        sleep(entropy::between(pause / 2, pause)).await;
        pause = (pause * 2).min(hold.interval());
    }
}

async fn wait_lost(hold: &Hold) -> Result<(), Fault> {
    // Not longer than for the copy: the wait goes on beside renewals and the release.
    let claim = hold.claim_state.lock().await.claim.clone();
    unpanicking(async { hold.engine.backend.wait_lost(&claim).await }).await
}
