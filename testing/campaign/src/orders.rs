//! The configuration of a client, and the orders that the campaign sends to it.

use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::kind::Kind;

/// The configuration that a client gets at its start, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClientConfig {
    pub(crate) run: String,
    pub(crate) seed: u64,
    /// The name of the client in the history.
    pub(crate) host: String,
    pub(crate) url: String,
    pub(crate) ttl: Duration,
    /// The upper bound of most holds, and of the pauses between them.
    #[serde(rename = "beat")]
    pub(crate) typical_hold: Duration,
    /// The bound on one call of the backend.
    pub(crate) timeout: Duration,
    pub(crate) locks: usize,
    pub(crate) tasks: usize,
    /// The seed of the client's random choices.
    pub(crate) draw: u64,
    /// True if orders may disturb the calls of the backend.
    pub(crate) calls: bool,
    /// The planted bug.
    pub(crate) bug: Option<String>,
    /// The limit on consecutive hand-overs inside the client.
    #[serde(default)]
    pub(crate) handovers: u8,
    /// True if the client also locks with `lockctl`.
    #[serde(default)]
    pub(crate) lockctl: bool,
}

/// An order of the campaign to a client, sent as one line.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    /// Block the executor until [`Thaw`](Self::Thaw).
    Freeze,
    Thaw,
    /// Disturb calls of the backend in this way: so many in a thousand, by at most this time.
    Disturb(Kind, u32, Duration),
    /// Disturb no more calls.
    Calm,
    /// Stop the renewal of new leases, or resume it.
    Unrenewed(bool),
    /// Take the lock with this number, renewed or not, and report `holds`. Hold it until it is lost
    /// or until [`Release`](Self::Release), then report `done`.
    Hold(usize, bool),
    Release,
    /// End as a killed process does. Only for threads.
    Die,
    /// Start no more operations, and exit.
    Quit,
}

impl Order {
    pub(crate) fn to_line(&self) -> String {
        match self {
            Self::Freeze => "freeze".into(),
            Self::Thaw => "thaw".into(),
            Self::Disturb(kind, rate, by) => {
                format!("disturb {} {rate} {}", kind.name(), by.as_millis())
            }
            Self::Calm => "calm".into(),
            Self::Unrenewed(yes) => format!("short {yes}"),
            Self::Hold(lock, renewed) => format!("hold {lock} {renewed}"),
            Self::Release => "let-go".into(),
            Self::Die => "die".into(),
            Self::Quit => "quit".into(),
        }
    }

    /// Parses a line. Returns `None` for an unknown order.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        Some(match line.split(' ').collect::<Vec<_>>()[..] {
            ["freeze"] => Self::Freeze,
            ["thaw"] => Self::Thaw,
            ["disturb", kind, rate, by] => {
                let kind = serde_json::from_value(kind.into()).ok()?;
                let by = Duration::from_millis(by.parse().ok()?);
                Self::Disturb(kind, rate.parse().ok()?, by)
            }
            ["calm"] => Self::Calm,
            ["short", yes] => Self::Unrenewed(yes.parse().ok()?),
            ["hold", lock, renewed] => Self::Hold(lock.parse().ok()?, renewed.parse().ok()?),
            ["let-go"] => Self::Release,
            ["die"] => Self::Die,
            ["quit"] => Self::Quit,
            _ => return None,
        })
    }
}

/// Reads orders, one a line, in a thread of its own until the input ends. Skips each line for which
/// `parse` returns `None`.
pub(crate) fn read_orders<T: Send + 'static>(
    from: impl Read + Send + 'static,
    parse: impl Fn(&str) -> Option<T> + Send + 'static,
) -> UnboundedReceiver<T> {
    let (sender, receiver) = unbounded_channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if parse(&line).is_some_and(|order| sender.send(order).is_err()) {
                return;
            }
        }
    });
    receiver
}
