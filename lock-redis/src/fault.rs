//! From the errors of the server and the connection to faults that say how to react.
//!
//! Some errors certainly changed nothing. The server refuses a command, or the first write of a
//! script, with a code of its own before it writes. Scripts are ordered so that only a first write
//! can be refused, or that earlier writes do not count (see `acquire.lua`). The outcome is unknown
//! after any other error, and after a failure of the connection once a request may have been sent.

use std::fmt;

use Effect::{NotApplied, Unknown};
use FaultKind::{Broken, Denied, Invalid, Unavailable, Unsupported};
use lock_core::backend::{Effect, Fault, FaultKind};
use lock_core::{Error, ErrorKind};
use redis::{ErrorKind as RedisKind, RedisError};

use crate::connection::address::{Address, Endpoint};

/// Returns the fault of a request that failed.
pub(crate) fn fault(action: &'static str, error: &RedisError) -> Fault {
    let (effect, kind, advice) = classify(error);
    let source = RequestError {
        action,
        advice: advice.into(),
        said: ServerMessage(redact(&error.to_string())),
    };
    match effect {
        NotApplied => Fault::not_applied(kind, source),
        Unknown => Fault::unknown(kind, source),
    }
}

/// Returns the fault of a failed connection attempt, after which no request was sent.
pub(crate) fn no_connection(address: &Address, error: &RedisError) -> Fault {
    let said = ServerMessage(redact(&error.to_string()));
    #[cfg(feature = "tls")]
    if let Some((kind, advice)) = handshake(error) {
        let advice = format!("{advice}; at {address}");
        return Fault::not_applied(kind, TlsError { advice, said });
    }
    let (_, kind, advice) = classify(error);
    // An error of the server itself has its own advice.
    let from_the_line = kind == Unavailable && error.kind() == RedisKind::Io;
    let advice = match address {
        Address::Tcp { tls, .. }
            if from_the_line && error.is_connection_dropped() && !error.is_connection_refusal() =>
        {
            let hint = match tls {
                true => "look at its log: it may want another client certificate",
                false => "if it expects encrypted connections, use rediss://",
            };
            format!("the server at {address} ended it; {hint}")
        }
        _ if from_the_line => format!("check that the server at {address} runs and is reachable"),
        _ => advice.to_owned(),
    };
    Fault::not_applied(kind, RequestError { action: "connect", advice, said })
}

/// Returns the fault of a server that did not answer in time during a connection attempt.
pub(crate) fn unanswered(address: &str) -> Fault {
    Fault::not_applied(Unavailable, format!("the server at {address} does not answer"))
}

/// Returns the same fault for a server that may expect another protocol.
pub(crate) fn no_handshake(endpoint: &Endpoint) -> Fault {
    let hint = match endpoint.is_encrypted() {
        true => "; check that it expects encrypted connections on this port",
        false => "",
    };
    Fault::not_applied(Unavailable, format!("the server at {endpoint} does not answer{hint}"))
}

/// Returns the fault of an answer that none of this crate's scripts gives.
pub(crate) fn unexpected_answer(action: &'static str, what: impl fmt::Display) -> Fault {
    let said = format!("cannot {action}: the server gave an answer that makes no sense: {what}");
    Fault::unknown(Broken, redact(&said))
}

/// Rights that are missing, by the names of the commands; or the server hides these.
pub(crate) fn missing_rights(commands: &[String]) -> Error {
    let rights: Vec<_> = commands.iter().map(|name| format!("+{}", name.to_lowercase())).collect();
    let message =
        format!("this user of the server lacks rights that locks need: grant {}", rights.join(" "));
    Error::new(ErrorKind::Denied, message)
}

/// Returns true if one side refused the certificate of the other. Their files may just be replaced.
pub(crate) fn is_certificate_refusal(fault: &Fault) -> bool {
    use std::error::Error;

    fault.kind() == Denied && matches!(fault.source(), Some(source) if source.is::<TlsError>())
}

/// Returns the same fault for a claim that goes on waiting until it has passed.
pub(crate) fn as_outage(fault: Fault) -> Fault {
    match (fault.effect(), fault.kind()) {
        (NotApplied, Denied) => Fault::not_applied(Unavailable, fault.into_source()),
        _ => fault,
    }
}

/// Converts the fault for a caller that has no backend yet.
pub(crate) fn error(fault: Fault) -> Error {
    let kind = fault.kind().into();
    let message = match fault.kind() {
        Unavailable => "cannot connect to the server",
        Denied => "the server refuses access; check credentials and rights",
        Unsupported => "the server cannot do this",
        Broken => "the server answers what no Redis server does",
        _ => "the server cannot accept this",
    };
    match fault.into_source().downcast::<TlsError>() {
        Ok(no_tls) => Error::new(kind, no_tls.advice).with_source(no_tls.said),
        Err(source) => Error::new(kind, message).with_source(source),
    }
}

/// Returns the cause of a fault, and apart from it the advice, where there is one.
pub(crate) fn cause_and_advice(fault: Fault) -> (String, Option<String>) {
    let source = match fault.into_source().downcast::<RequestError>() {
        Ok(failed) => {
            let cause = format!("cannot {}: {}", failed.action, failed.said);
            return (cause, Some(failed.advice));
        }
        Err(source) => source,
    };
    match source.downcast::<TlsError>() {
        Ok(no_tls) => (format!("cannot connect: {}", no_tls.said), Some(no_tls.advice)),
        Err(source) => (source.to_string(), None),
    }
}

/// Returns the server's message, without secrets.
pub(crate) fn message(error: &RedisError) -> String {
    redact(&error.to_string())
}

/// Returns true if the connection is unusable after this error.
pub(crate) fn is_broken(error: &RedisError) -> bool {
    error.is_unrecoverable_error() || error.is_io_error()
}

/// Returns true if this server is a replica, so that another server holds the locks.
pub(crate) fn is_replica_refusal(error: &RedisError) -> bool {
    matches!(error.code(), Some("READONLY" | "MASTERDOWN"))
}

/// Returns true if the server lacks a command or denies it to this user.
pub(crate) fn is_refused(error: &RedisError) -> bool {
    let (_, kind, _) = classify(error);
    matches!(kind, Denied | Unsupported)
}

/// Returns true if the server refuses work for now, and may accept the same request later.
pub(crate) fn is_transient(error: &RedisError) -> bool {
    let first =
        error.clone().into_server_errors().and_then(|errors| Some(errors.first()?.1.clone()));
    let (effect, kind, _) = classify(first.map(RedisError::from).as_ref().unwrap_or(error));
    (effect, kind) == (NotApplied, Unavailable)
}

/// Returns true if the server lacks a command, for all users.
pub(crate) fn is_hidden(error: &RedisError) -> bool {
    let (_, kind, _) = classify(error);
    kind == Unsupported
}

fn classify(error: &RedisError) -> (Effect, FaultKind, &'static str) {
    match error.kind() {
        RedisKind::AuthenticationFailed => (NotApplied, Denied, "check user and password"),
        RedisKind::InvalidClientConfig => (NotApplied, Invalid, "check the address"),
        RedisKind::RESP3NotSupported => {
            (NotApplied, Unsupported, "the server must be Redis 6 or newer")
        }
        RedisKind::UnexpectedReturnType => {
            (Unknown, Broken, "the server answers what no Redis server does")
        }
        RedisKind::Io | RedisKind::Parse => {
            (Unknown, Unavailable, "the connection failed; check the server and the network")
        }
        _ => {
            let said = error.to_string();
            let detail = error.detail().unwrap_or(&said);
            classify_reply(error.code().unwrap_or("ERR"), detail)
        }
    }
}

/// Returns the cause of a failed TLS handshake, as either side reports it, or `None` for another
/// error.
#[cfg(feature = "tls")]
fn handshake(error: &RedisError) -> Option<(FaultKind, &'static str)> {
    use rustls::AlertDescription as Alert;
    use rustls::CertificateError as Flaw;
    use rustls::Error::{
        AlertReceived, InappropriateHandshakeMessage, InappropriateMessage, InvalidCertificate,
        InvalidMessage, PeerIncompatible,
    };

    Some(match tls_error(error)? {
        AlertReceived(Alert::CertificateRequired) => (
            Denied,
            "the server wants a client certificate: name one by the URL options cert and key",
        ),
        AlertReceived(
            Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown,
        ) => (
            Denied,
            "the server refuses this client certificate: check who issued it, and its dates",
        ),
        // TLS 1.2 also says this when a certificate is missing.
        AlertReceived(Alert::HandshakeFailure) => (
            Denied,
            "the server refuses the handshake: it may want a client certificate, see its log",
        ),
        AlertReceived(Alert::ProtocolVersion | Alert::InsufficientSecurity)
        | PeerIncompatible(_) => {
            (Unsupported, "the server and this client have no version or cipher of TLS in common")
        }
        InvalidCertificate(Flaw::Expired | Flaw::ExpiredContext { .. }) => {
            (Denied, "the server's certificate has expired")
        }
        InvalidCertificate(Flaw::NotValidForName | Flaw::NotValidForNameContext { .. }) => {
            let hint = "the server's certificate is for another host: use a name that is in it, and have \
                        Sentinels and clusters announce it";
            (Denied, hint)
        }
        InvalidCertificate(Flaw::UnknownIssuer) => (
            Denied,
            "no trusted authority vouches for the server: name its authority by the URL option ca",
        ),
        InvalidCertificate(_) => (
            Denied,
            "the server's certificate is not fit for a server, as that of an authority is not",
        ),
        InvalidMessage(_) | InappropriateMessage { .. } | InappropriateHandshakeMessage { .. } => (
            Unavailable,
            "the server does not speak TLS on this port: use another one, or redis://",
        ),
        _ => {
            (Unavailable, "the encrypted connection could not be set up: look at the server's log")
        }
    })
}

/// Returns the TLS error inside an I/O error of the library.
#[cfg(feature = "tls")]
fn tls_error(error: &RedisError) -> Option<&rustls::Error> {
    use std::error::Error;

    let shared = error.source()?.downcast_ref::<std::sync::Arc<dyn Error + Send + Sync>>()?;
    shared.downcast_ref::<std::io::Error>()?.get_ref()?.downcast_ref()
}

/// Classifies an error that the server sent: a code and a text.
fn classify_reply(code: &str, detail: &str) -> (Effect, FaultKind, &'static str) {
    let (kind, advice) = match code {
        "ERR" => return classify_text(detail),
        "OOM" => (Unavailable, "the server is at its memory limit: raise maxmemory or make room"),
        "READONLY" => (Unavailable, "this server is a replica: connect to the primary"),
        "MASTERDOWN" => (Unavailable, "this server is a replica without primary"),
        "LOADING" => (Unavailable, "the server is loading its data: wait"),
        "BUSY" => (Unavailable, "a script blocks the server: wait, or end it with SCRIPT KILL"),
        "MISCONF" => {
            (Unavailable, "the server cannot save its data and refuses writes: look at its log")
        }
        "NOREPLICAS" => (Unavailable, "too few replicas: look at min-replicas-to-write"),
        "NOSCRIPT" => (Unavailable, "somebody flushes the server's scripts all the time"),
        "CLUSTERDOWN" => (Unavailable, "the cluster is not whole: wait"),
        "TRYAGAIN" => (Unavailable, "the cluster is moving the slot of this lock: wait"),
        "MOVED" | "ASK" | "CROSSSLOT" => {
            (Unsupported, "this server is a member of a cluster: write redis+cluster://")
        }
        "NOAUTH" => (Denied, "the server asks for a password: add user:password@ to the URL"),
        "WRONGPASS" => (Denied, "check user and password"),
        "NOPERM" if detail.contains("keys") => {
            (Denied, "grant this user the keys of its locks: ~<prefix>* and ~{<prefix>*")
        }
        "NOPERM" if detail.contains("channel") => (
            Denied,
            "grant this user the channels of its locks, &<prefix>*; or connect with order=any",
        ),
        "NOPERM" => (Denied, "grant this user the right, see the documentation of lock-redis"),
        "WRONGTYPE" | "LOCKTYPE" => {
            (Invalid, "the key is in use for something else: choose another name or prefix")
        }
        "LOCKTOKEN" => {
            (Invalid, "somebody else writes to the key of the fencing tokens: delete it")
        }
        "LOCKSPENT" => (
            Invalid,
            "no fencing token is left: choose another name; without the key, tokens would go back",
        ),
        "NOPROTO" => (Unsupported, "the server must be Redis 6 or newer"),
        _ => return (Unknown, Unavailable, "look at what the server says"),
    };
    (NotApplied, kind, advice)
}

/// Classifies an error whose code says nothing.
fn classify_text(detail: &str) -> (Effect, FaultKind, &'static str) {
    // Before version 7, a failure inside a script comes as `ERR Error running script (call to …):
    // @user_script:1: @user_script: 1: -OOM command not …`.
    if let Some((_, inner)) = detail.rsplit_once("@user_script: ") {
        let inner = inner.trim_start_matches(|c: char| c.is_ascii_digit() || c == ':' || c == ' ');
        let inner = inner.strip_prefix('-').unwrap_or(inner);
        let (code, rest) = inner.split_once(' ').unwrap_or((inner, ""));
        if code != "ERR" && code.bytes().all(|b| b.is_ascii_uppercase()) {
            return classify_reply(code, rest);
        }
    }
    let denied = "grant this user the right, see the documentation of lock-redis";
    if detail.contains("ACL failure in script") {
        // Of Valkey.
        classify_reply("NOPERM", detail)
    } else if detail.contains("can't run this command")
        || detail.contains("can't access at least one")
    {
        (NotApplied, Denied, denied)
    } else if detail.contains("without any password configured") {
        (NotApplied, Denied, "this user has no password on the server: check user and password")
    } else if detail.contains("max number of clients") {
        (NotApplied, Unavailable, "the server has too many clients: raise maxclients")
    } else if detail.contains("cluster support disabled") {
        (NotApplied, Unsupported, "this server is no member of a cluster: write redis://")
    } else if detail.contains("unknown command") {
        (NotApplied, Unsupported, "the server lacks a command that locks need, or hides it")
    } else if detail.contains("DB index") || detail.contains("switch database") {
        (NotApplied, Invalid, "check the number of the database in the URL")
    } else {
        (Unknown, Unavailable, "look at what the server says")
    }
}

/// Removes secrets from a message of the server. Owner ids and passwords are rights, and a server
/// repeats arguments in some of its errors. Only the beginning of a long run of hex digits is
/// shown, and no arguments.
fn redact(text: &str) -> String {
    const SHOWN: usize = 8;
    const SECRET: usize = 24;
    let mut out = String::with_capacity(text.len());
    let mut run = 0;
    let text = text.split(", with args beginning with").next().unwrap_or(text);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        out.push(c);
        run = if c.is_ascii_hexdigit() { run + 1 } else { 0 };
        let ends = chars.peek().is_none_or(|next| !next.is_ascii_hexdigit());
        if ends && run >= SECRET {
            out.truncate(out.len() - (run - SHOWN));
            out.push('…');
        }
    }
    out
}

/// The failed action and the advice; the server's message is the source.
#[derive(Debug)]
struct RequestError {
    action: &'static str,
    advice: String,
    said: ServerMessage,
}

/// The reason for a failed encrypted connection, and the advice.
#[derive(Debug)]
struct TlsError {
    advice: String,
    said: ServerMessage,
}

/// A message of the server or the system, without owner ids.
#[derive(Debug)]
struct ServerMessage(String);

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot {}: {} ({})", self.action, self.said, self.advice)
    }
}

impl std::error::Error for RequestError {}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot connect: {} ({})", self.advice, self.said)
    }
}

impl std::error::Error for TlsError {}

impl fmt::Display for ServerMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ServerMessage {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_requests_were_not_applied() {
        for (code, detail, kind) in [
            ("OOM", "command not allowed when used memory > 'maxmemory'.", Unavailable),
            ("READONLY", "You can't write against a read only replica.", Unavailable),
            ("NOPERM", "this user has no permissions to run the 'script|load' command", Denied),
            ("ERR", "The user executing the script can't run this command or subcommand", Denied),
            ("WRONGTYPE", "Operation against a key holding the wrong kind of value", Invalid),
            ("ERR", "unknown command 'EVALSHA', with args beginning with: ", Unsupported),
            (
                "ERR",
                "Error running script (call to f_6b1bf486c81ceb7edf3c093f4c48582e38c0e791): \
                 @user_script:1: @user_script: 1: -OOM command not allowed when used memory > \
                 'maxmemory'.",
                Unavailable,
            ),
            (
                "ERR",
                "Error running script (call to f_6b1b): @user_script:12: @user_script: 12: \
                 -READONLY You can't write against a read only replica.",
                Unavailable,
            ),
        ] {
            let (effect, found, _) = classify_reply(code, detail);
            assert_eq!((effect, found), (NotApplied, kind), "{code} {detail}");
        }
    }

    #[test]
    fn other_errors_have_an_unknown_outcome() {
        for (code, detail) in
            [("ERR", "something new"), ("NEWCODE", "x"), ("ERR", "@user_script: 3: x")]
        {
            assert_eq!(classify_reply(code, detail).0, Unknown, "{code} {detail}");
        }
        let broken = RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
        assert_eq!(fault("acquire", &broken).effect(), Unknown);
        // A firewall that rejects packets ends a connection with this error.
        let refused = RedisError::from(std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
        assert_eq!(fault("acquire", &refused).effect(), Unknown);
    }

    #[test]
    fn owner_ids_are_cut() {
        let owner = lock_core::OwnerId::mint();
        let shown = redact(&format!("the key '{}' 'x' deadbeef", owner.expose()));
        assert!(shown.contains(&format!("'{}…'", owner.short())), "{shown}");
        assert!(shown.ends_with("'x' deadbeef"), "{shown}");
        assert!(!shown.contains(&owner.expose()[..9]), "{shown}");
    }
}
