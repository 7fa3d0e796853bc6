//! The life of a claim: acquire, hold, renew, release.
//!
//! The modules form layers, from the bottom: queues and schedules that know no lock, the state that
//! acquisitions share, the hold, its release and its renewals, hand-overs, acquisitions.

pub(crate) mod acquire;
pub(crate) mod backoff;
pub(crate) mod finish_on_drop;
pub(crate) mod handover;
pub(crate) mod hold;
pub(crate) mod local_queue;
pub(crate) mod loss_watch;
pub(crate) mod release;
pub(crate) mod renewer;
pub(crate) mod schedule;
pub(crate) mod shared;
pub(crate) mod wait_progress;
