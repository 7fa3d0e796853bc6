//! The verbs that need more than a few lines, one file each.

mod acquire;
mod inspect;
mod release;
mod renew;
mod wait;
