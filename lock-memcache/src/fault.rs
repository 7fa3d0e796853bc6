//! Refusals and failed connections as faults, with advice.

use std::fmt;

use lock_core::Error;
use lock_core::backend::{Effect, Fault, FaultKind};

use Effect::{NotApplied, Unknown};
use FaultKind::{Broken, Denied, Invalid, Unavailable, Unsupported};

/// The refusal of a server at its memory limit, when it must not make room (`-M`) or finds none.
pub(crate) const OUT_OF_MEMORY: &str = "SERVER_ERROR out of memory";

/// Returns the fault of a command that the server refused.
pub(crate) fn refused(action: &'static str, said: &str) -> Fault {
    let (effect, kind, advice) = classify(said);
    let said: String = said.chars().take(200).collect();
    let refusal = ServerRefusal { action, said: said.escape_debug().to_string(), advice };
    match effect {
        NotApplied => Fault::not_applied(kind, refusal),
        Unknown => Fault::unknown(kind, refusal),
    }
}

/// Returns the same fault with an unknown effect, for failures after the lock was taken.
pub(crate) fn with_unknown_effect(fault: Fault) -> Fault {
    Fault::unknown(fault.kind(), fault.into_source())
}

/// Returns the fault of a connection that failed before the answer.
pub(crate) fn broken(server: &str, why: &str) -> Fault {
    Fault::unknown(Unavailable, format!("the connection to {server} failed: {why}"))
}

/// Returns the fault of a connection that could not be made, so that nothing was sent.
pub(crate) fn no_connection(server: &str, why: &str) -> Fault {
    let why = format!(
        "cannot connect to {server}: {why} (check that the server runs and is reachable, without TLS)"
    );
    Fault::not_applied(Unavailable, why)
}

/// Returns the fault of a reply that the command never has.
pub(crate) fn unexpected_reply(action: &'static str, reply: impl fmt::Display) -> Fault {
    let said = format!("cannot {action}: the server gave an unexpected answer: {reply}");
    Fault::unknown(Broken, said)
}

/// Returns the fault of a counter of fencing tokens that another client has rewritten. It was drawn
/// from.
pub(crate) fn foreign_counter(key: &str, number: u64, why: &str) -> Fault {
    let said = format!(
        "cannot draw a fencing token: the counter {key} says {number}, which {why} (another client wrote to \
         the key {key}: delete it, and the next lock begins it anew with the server's clock)"
    );
    Fault::unknown(Invalid, said)
}

/// Returns the same fault, before there is a backend.
pub(crate) fn error(fault: Fault) -> Error {
    let message = match fault.kind() {
        Unavailable => "cannot connect to the servers",
        Denied => "the server refuses access",
        Unsupported => "the server lacks a feature that locks need",
        Broken => "the server sent a reply that no memcached sends",
        _ => "the server cannot accept this",
    };
    Error::new(fault.kind().into(), message).with_source(fault.into_source())
}

fn classify(said: &str) -> (Effect, FaultKind, &'static str) {
    if said.starts_with(OUT_OF_MEMORY) {
        (NotApplied, Unavailable, "the server is at its memory limit: raise -m, or make room")
    } else if said.contains("too many open connections") {
        (NotApplied, Unavailable, "the server has too many clients: raise -c")
    } else if said.contains("unauthenticated") {
        (NotApplied, Denied, "the server requires authentication: add user:password@ to the URL")
    } else if said.contains("authentication failure") {
        (NotApplied, Denied, "check user and password")
    } else if said.contains("non-numeric") {
        (
            NotApplied,
            Invalid,
            "another client writes to <prefix>%fence, the key of the fencing tokens: delete it",
        )
    } else if said == "ERROR" {
        (NotApplied, Unsupported, "the server must be memcached 1.6 or newer")
    } else {
        (Unknown, Unavailable, "see the server's message")
    }
}

/// An action, the refusal of the server, and advice.
#[derive(Debug)]
struct ServerRefusal {
    action: &'static str,
    said: String,
    advice: &'static str,
}

impl fmt::Display for ServerRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {} ({})", self.action, self.said, self.advice)
    }
}

impl std::error::Error for ServerRefusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_say_whether_they_were_applied_and_what_to_do() {
        for (said, effect, kind) in [
            ("SERVER_ERROR out of memory storing object", NotApplied, Unavailable),
            ("ERROR Too many open connections", Unknown, Unavailable),
            ("SERVER_ERROR too many open connections", NotApplied, Unavailable),
            ("CLIENT_ERROR unauthenticated", NotApplied, Denied),
            ("CLIENT_ERROR authentication failure", NotApplied, Denied),
            ("CLIENT_ERROR cannot increment or decrement non-numeric value", NotApplied, Invalid),
            ("ERROR", NotApplied, Unsupported),
            ("SERVER_ERROR something new", Unknown, Unavailable),
        ] {
            let fault = refused("do it", said);
            assert_eq!((fault.effect(), fault.kind()), (effect, kind), "{said}");
        }
    }

    #[test]
    fn refusals_are_shown_in_one_short_line() {
        let shown = refused("do it", &"\x1b[2J".repeat(1000)).into_source().to_string();
        assert!(shown.len() < 2000 && !shown.contains('\x1b'), "{shown}");
    }
}
