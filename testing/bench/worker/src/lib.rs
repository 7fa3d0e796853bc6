//! The worker protocol of `lock-bench`, for any lock library of Rust: implement [`Lib`], and [`serve`] does what
//! stdin says. `testing/bench/PROTOCOL.md` has the lines.

pub mod clock;
mod commands;
mod pairs;
mod session;

use std::io::BufRead;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;

use commands::Command;
pub use pairs::histogram;
use session::Session;

/// The version of the protocol.
const PROTOCOL: u32 = 1;

/// A way to lock that can be measured.
///
/// Errors are text: they end up in a report and end the run.
pub trait Lib: Send + Sync + 'static {
    /// A lock that was prepared as far as users of this library would.
    type Lock: Clone + Send + Sync + 'static;
    /// A lock that is held.
    type Held: Send + Sync + 'static;

    /// Why it cannot wait for a lock that somebody has, if it cannot. It is then asked for locks only that
    /// nobody has.
    const CANNOT_WAIT: Option<&str> = None;

    /// Why a lock ends although its holder lives and holds on to it, if it does.
    const CANNOT_KEEP: Option<&str> = None;

    /// The lock of that name.
    ///
    /// # Errors
    ///
    /// A name that this library does not take.
    fn lock(&self, name: &str) -> Result<Self::Lock, String>;

    /// Waits for the lock. Floors that cannot wait fail where somebody else has it.
    fn acquire(
        &self,
        lock: &Self::Lock,
        ttl: Duration,
    ) -> impl Future<Output = Result<Self::Held, String>> + Send;

    /// Lets go, and comes back when that is known to be done.
    fn release(&self, held: Self::Held) -> impl Future<Output = Result<(), String>> + Send;

    /// The fencing token, if this library has any.
    fn token(_held: &Self::Held) -> Option<u64> {
        None
    }

    /// How long the lock lasts if it is not renewed any more; `Duration::MAX` where locks have no end,
    /// `None` if it was lost.
    fn valid_for(_held: &Self::Held) -> Option<Duration> {
        Some(Duration::MAX)
    }
}

/// Why a command was not carried out.
#[derive(Clone, Debug)]
enum Failure {
    /// This library cannot do such a thing at all.
    Cannot(&'static str),
    /// It went wrong.
    Failed(String),
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// A runtime for a worker.
///
/// # Errors
///
/// There is none to be had.
pub fn runtime(threads: usize) -> Result<tokio::runtime::Runtime, String> {
    let mut builder = match threads {
        0 => tokio::runtime::Builder::new_current_thread(),
        threads => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(threads);
            builder
        }
    };
    builder.enable_all().build().map_err(|e| format!("no runtime: {e}"))
}

/// Answers each line of stdin with one line, until stdin ends.
///
/// # Cancel safety
///
/// Not cancel safe: a command that was begun is left unanswered. It is what a process does until it ends.
pub async fn serve<L: Lib>(lib: L) {
    let mut session = Session::new(lib);
    let mut lines = lines();
    say(&json!({ "ready": PROTOCOL }));
    while let Some(line) = lines.recv().await {
        let answer = match Command::parse(&line) {
            Ok(command) => session.execute(command).await,
            Err(error) => Err(Failure::Failed(error)),
        };
        say(&answer.unwrap_or_else(|failure| match failure {
            Failure::Cannot(why) => json!({ "cannot": why }),
            Failure::Failed(why) => json!({ "error": why }),
        }));
    }
}

/// The lines of stdin. Its end ends the process, whatever it is doing: nobody wants the answer.
fn lines() -> mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
        std::process::exit(0);
    });
    receiver
}

fn say(answer: &Value) {
    println!("{answer}");
}
