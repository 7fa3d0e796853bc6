//! The effect and the kind of each error of the client crate.

use std::error::Error as _;
use std::fmt;

use lock_core::backend::{Fault, FaultKind};
use lock_core::{Error, ErrorKind};
use zookeeper_client::Error as ZkError;

/// An error code without a name in the client crate.
pub(crate) const EPHEMERAL_ON_LOCAL_SESSION: i32 = -120;

/// Returns the fault of a request that failed with `error`, while `doing`.
pub(crate) fn fault(doing: &str, error: &ZkError) -> Fault {
    let text = format!("{doing}: {}", explained(error));
    match error {
        ZkError::Throttled => Fault::not_applied(FaultKind::Unavailable, Throttled(text)),
        ZkError::NoAuth | ZkError::InvalidAcl | ZkError::AuthFailed => {
            Fault::not_applied(FaultKind::Denied, text)
        }
        ZkError::NotReadOnly | ZkError::NoHosts => Fault::not_applied(FaultKind::Unavailable, text),
        ZkError::Unimplemented => Fault::not_applied(FaultKind::Unsupported, text),
        &ZkError::UnexpectedErrorCode(EPHEMERAL_ON_LOCAL_SESSION) => {
            Fault::not_applied(FaultKind::Invalid, text)
        }
        error if is_refusal(error) => Fault::not_applied(FaultKind::Invalid, text),
        _ => Fault::unknown(FaultKind::Unavailable, text),
    }
}

/// The cause of a request that an overloaded server has dropped.
#[derive(Debug)]
struct Throttled(String);

impl fmt::Display for Throttled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Throttled {}

/// Returns true if an overloaded server has dropped the request, and may accept it soon.
pub(crate) fn is_throttled(fault: &Fault) -> bool {
    matches!(fault.source(), Some(cause) if cause.is::<Throttled>())
}

/// Returns the error of a failed connection.
pub(crate) fn error(error: &ZkError) -> Error {
    let kind = match error {
        ZkError::NoAuth | ZkError::AuthFailed => ErrorKind::Denied,
        ZkError::BadArguments(_) | &ZkError::UnexpectedErrorCode(EPHEMERAL_ON_LOCAL_SESSION) => {
            ErrorKind::Invalid
        }
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("connecting to ZooKeeper: {}", explained(error)))
}

/// Returns true if the server refused the request, or the client before it sent anything.
fn is_refusal(error: &ZkError) -> bool {
    matches!(
        error,
        ZkError::BadArguments(_)
            | ZkError::NoNode
            | ZkError::NodeExists
            | ZkError::BadVersion
            | ZkError::NoChildrenForEphemerals
            | ZkError::NotEmpty
            | ZkError::QuotaExceeded
            | ZkError::MarshallingError
            | ZkError::ReconfigDisabled
    )
}

/// Returns the text of an error, with advice.
fn explained(error: &ZkError) -> String {
    let advice = match error {
        ZkError::NoHosts => {
            "no server took the connection: none is up or has a quorum, or it refuses (see its maxClientCnxns, and over TLS the certificates of both sides)"
        }
        ZkError::NoAuth => {
            "the client's user lacks rights on the nodes of this lock (see their ACLs)"
        }
        ZkError::QuotaExceeded => "the quota of a node above the lock is used up",
        ZkError::NoChildrenForEphemerals => "where the lock's node should be is an ephemeral node",
        ZkError::NoNode => "the chroot does not exist, or was deleted",
        ZkError::Unimplemented => {
            "the server does not know this kind of request: containers need ZooKeeper 3.5 or newer"
        }
        ZkError::UnexpectedErrorCode(EPHEMERAL_ON_LOCAL_SESSION) => {
            "the session is local to its member, which does not make it a global one for a node that ends with it: set localSessionsUpgradingEnabled=true, or localSessionsEnabled=false"
        }
        ZkError::Throttled => {
            "the server is overloaded and drops requests that have waited for its throttled_op_wait_time"
        }
        ZkError::NotReadOnly => "the server is cut off from its quorum and only answers reads",
        other => return other.to_string(),
    };
    format!("{error}: {advice}")
}

#[cfg(test)]
mod tests {
    use lock_core::Effect;

    use super::*;

    #[test]
    fn only_what_the_server_has_refused_is_certain() {
        for (error, effect, kind) in [
            (ZkError::ConnectionLoss, Effect::Unknown, FaultKind::Unavailable),
            (ZkError::Timeout, Effect::Unknown, FaultKind::Unavailable),
            (ZkError::SessionExpired, Effect::Unknown, FaultKind::Unavailable),
            (ZkError::SessionMoved, Effect::Unknown, FaultKind::Unavailable),
            (ZkError::UnexpectedError("odd".into()), Effect::Unknown, FaultKind::Unavailable),
            (ZkError::NoAuth, Effect::NotApplied, FaultKind::Denied),
            (ZkError::QuotaExceeded, Effect::NotApplied, FaultKind::Invalid),
            (ZkError::NotReadOnly, Effect::NotApplied, FaultKind::Unavailable),
            (ZkError::UnexpectedErrorCode(-120), Effect::NotApplied, FaultKind::Invalid),
            (ZkError::UnexpectedErrorCode(-99), Effect::Unknown, FaultKind::Unavailable),
        ] {
            let fault = fault("testing", &error);
            assert_eq!((fault.effect(), fault.kind()), (effect, kind), "{error}");
        }
    }
}
