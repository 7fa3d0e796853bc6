//! What core promises, on the memory backend and on backends made for a test.

mod adversity;
mod api;
mod cancelled;
mod clean_up;
mod contention;
mod executor;
mod fork;
mod guard;
mod handover;
mod keeper;
mod names;
mod notices;
mod oddities;
mod places;
mod policies;
mod renewals;
mod runtimes;
mod support;
mod traces;
mod urls;
mod work;
