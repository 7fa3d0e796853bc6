//! The commands of a worker.

use std::time::Duration;

/// One line of stdin.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// `ttl MS`: the lease of later commands.
    Ttl(Duration),
    /// `pairs PREFIX TASKS COUNT MS RATE`
    Pairs(Pairs),
    /// `hold NAME`
    Hold(String),
    /// `free NAME`
    Free(String),
    /// `try NAME`
    Try(String),
    /// `extend NAME MS`
    Extend { name: String, ttl: Duration },
    /// `held NAME`
    Held(String),
    /// `count NAME MS HOLD_US PAUSE_US FILE`
    Count(Count),
    /// `queue NAME WAITERS HOLD_US TIMES`
    Queue { name: String, waiters: usize, hold: Duration, times: u64 },
    /// `collect`: waits for the waiters.
    Collect,
    /// `keep PREFIX COUNT`
    Keep { prefix: String, count: usize },
    /// `kept`
    Kept,
    /// `drop`
    Drop,
}

/// Uncontended pairs of acquire and release.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pairs {
    /// Task `i` uses the lock `PREFIX-i`, and no other task does.
    pub(crate) prefix: String,
    pub(crate) tasks: usize,
    /// The greatest number of pairs of each task; 0: no limit.
    pub(crate) count: u64,
    /// The duration; zero: no limit.
    pub(crate) time: Duration,
    /// The pairs a second that all tasks together begin; 0: each one as soon as the one before has
    /// ended.
    pub(crate) rate: u64,
}

/// Increments of a counter in a file, each in two steps under the lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) name: String,
    pub(crate) time: Duration,
    /// The time between the read and the write.
    pub(crate) hold: Duration,
    /// The time between a release and the next request.
    pub(crate) pause: Duration,
    pub(crate) file: String,
}

impl Command {
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["ttl", ms] => Ok(Self::Ttl(Duration::from_millis(number(ms)?))),
            ["pairs", prefix, tasks, count, ms, rate] => {
                let (count, ms) = (number(count)?, number(ms)?);
                if count == 0 && ms == 0 {
                    return Err("pairs without an end: give a count, a time, or both".into());
                }
                Ok(Self::Pairs(Pairs {
                    prefix: (*prefix).to_owned(),
                    tasks: size(tasks)?,
                    count,
                    time: Duration::from_millis(ms),
                    rate: number(rate)?,
                }))
            }
            ["hold", name] => Ok(Self::Hold((*name).to_owned())),
            ["free", name] => Ok(Self::Free((*name).to_owned())),
            ["try", name] => Ok(Self::Try((*name).to_owned())),
            ["extend", name, ms] => Ok(Self::Extend {
                name: (*name).to_owned(),
                ttl: Duration::from_millis(number(ms)?),
            }),
            ["held", name] => Ok(Self::Held((*name).to_owned())),
            ["count", name, ms, hold, pause, file] => Ok(Self::Count(Count {
                name: (*name).to_owned(),
                time: Duration::from_millis(number(ms)?),
                hold: Duration::from_micros(number(hold)?),
                pause: Duration::from_micros(number(pause)?),
                file: (*file).to_owned(),
            })),
            ["queue", name, waiters, hold, times] => Ok(Self::Queue {
                name: (*name).to_owned(),
                waiters: size(waiters)?,
                hold: Duration::from_micros(number(hold)?),
                times: number(times)?,
            }),
            ["collect"] => Ok(Self::Collect),
            ["keep", prefix, count] => {
                Ok(Self::Keep { prefix: (*prefix).to_owned(), count: size(count)? })
            }
            ["kept"] => Ok(Self::Kept),
            ["drop"] => Ok(Self::Drop),
            _ => Err(format!("not a command: {line:?}; PROTOCOL.md lists them")),
        }
    }
}

fn number(word: &str) -> Result<u64, String> {
    word.parse().map_err(|_| format!("not a whole number: {word:?}"))
}

fn size(word: &str) -> Result<usize, String> {
    usize::try_from(number(word)?).map_err(|_| format!("too large: {word}"))
}
