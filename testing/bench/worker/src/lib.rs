//! The worker protocol of `lock-bench`, for any lock library of Rust: implement [`Lib`], and
//! [`serve`] executes the commands of stdin. `testing/bench/PROTOCOL.md` describes them.

pub mod clock;
mod commands;
mod library;
mod pairs;
mod session;

use std::io::BufRead;

use serde_json::{Value, json};
use tokio::sync::mpsc;

use commands::Command;
pub use library::Lib;
pub use pairs::histogram;
use session::{Failure, Session};

/// The version of the protocol.
const PROTOCOL: u32 = 1;

/// Creates a runtime for a worker.
///
/// # Errors
///
/// The system has no resources for it.
pub fn runtime(threads: usize) -> Result<tokio::runtime::Runtime, String> {
    let mut builder = match threads {
        0 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder
        .worker_threads(threads.max(1))
        .enable_all()
        .build()
        .map_err(|e| format!("no runtime: {e}"))
}

/// Answers each line of stdin with one line, until stdin ends.
///
/// # Cancel safety
///
/// Not cancel safe: a running command is left unanswered. A process does this until it ends.
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

/// Reads the lines of stdin. Its end ends the process, even during a command: the answer has no
/// reader.
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
