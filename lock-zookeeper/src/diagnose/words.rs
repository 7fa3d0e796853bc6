//! The four letter words, which servers answer without a session.

use std::time::Duration;

use lock_core::diagnosis::Finding;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::config::Config;

/// The bound on an answer.
pub(super) const BOUND: Duration = Duration::from_secs(3);

/// The longest answer that is read.
const MAX_ANSWER: u64 = 1 << 16;

/// The reason why a word has no answer, and how to get one.
pub(super) struct NoAnswer {
    why: String,
    remedy: &'static str,
}

impl NoAnswer {
    pub(super) fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), remedy: "add 4lw.commands.whitelist=srvr,conf to zoo.cfg" }
    }

    /// Returns the finding of a check that needs the answer.
    pub(super) fn unseen(&self, check: &'static str) -> Finding {
        Finding::unseen(check, &self.why).remedy(self.remedy)
    }
}

/// Returns the answer to a four letter word, or the reason why there is none.
pub(super) async fn ask(config: &Config, address: &str, word: &str) -> Result<String, NoAnswer> {
    #[cfg(feature = "tls")]
    if config.certificates.is_some() {
        return Err(NoAnswer {
            why: "four letter words are not asked over TLS".to_owned(),
            remedy: "check the plain client port as well, where there is one, or read zoo.cfg",
        });
    }
    let _ = config;
    let asking = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
        std::io::Result::Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    match tokio::time::timeout(BOUND, asking).await {
        Ok(Ok(answer)) if answer.contains("is not in the whitelist") => {
            Err(NoAnswer::new(format!("the server does not answer the word {word}")))
        }
        Ok(Ok(answer)) if !answer.is_empty() => Ok(answer),
        Ok(Ok(_)) => Err(NoAnswer::new(format!("the answer to the word {word} is empty"))),
        Ok(Err(error)) => Err(NoAnswer::new(format!("the word {word} failed: {error}"))),
        Err(_) => Err(NoAnswer::new(format!("the word {word} has no answer within {BOUND:?}"))),
    }
}

/// Returns the value after `key`, which ends in a separator, in an answer.
pub(super) fn value<'a>(answer: &'a str, key: &str) -> Option<&'a str> {
    answer.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
}

/// Returns the value of a setting in milliseconds.
pub(super) fn millis(answer: &str, key: &str) -> Option<Duration> {
    let millis = value(answer, key)?.parse().ok()?;
    Some(Duration::from_millis(millis)).filter(|time| !time.is_zero())
}
