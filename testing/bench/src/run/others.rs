//! Locks of other projects, which are measured on request if they are installed.
//!
//! A new one is a row here, and a worker in `testing/fleet`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::peer::{Lib, Wakeup};

/// A lock of another project, with its defaults or tuned as its own documents say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OtherLib {
    /// Its column.
    name: &'static str,
    worker: Worker,
    /// Arguments of its worker.
    options: &'static [&'static str],
    wakeup: Wakeup,
    tuning: Tuning,
}

/// Whether the interval between two polls of a waiter is tuned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tuning {
    /// The same library as the row before, with another interval: it differs only under contention.
    Tuned,
    /// The next row has another interval.
    Follows,
    /// It has no other row, for this reason.
    None(&'static str),
}

/// The program that runs it. Without a URL, each but the first prints the version of the library.
#[derive(Clone, Copy, Debug)]
enum Worker {
    /// This program.
    Own,
    /// A script for Debian's own Python: another one in the PATH does not find Debian's packages.
    DebianPython(&'static str),
    /// A script for Java's BeanShell, with Debian's jars.
    BeanShell(&'static str),
    /// A script for the Python of `testing/fleet/setup`.
    Python(&'static str),
    /// A script for node, with the packages of `testing/fleet/setup`.
    Node(&'static str),
    /// A library of `testing/fleet/rust`.
    Rust(&'static str),
    /// A library of the program in `testing/fleet/go`.
    Go(&'static str),
    /// A library of the program in `testing/fleet/java`.
    Java(&'static str),
}

/// Builds a row with the defaults for a library without tuning. `why` completes "it …".
const fn untunable(
    name: &'static str,
    worker: Worker,
    wakeup: Wakeup,
    why: &'static str,
) -> OtherLib {
    OtherLib { name, worker, options: &[], wakeup, tuning: Tuning::None(why) }
}

/// Builds a row for a library that notifies its waiters.
const fn notified(name: &'static str, worker: Worker) -> OtherLib {
    untunable(name, worker, Notified, "notifies its waiters")
}

/// Builds a row with the defaults; the next row has the shortest interval that the documents allow.
const fn row(name: &'static str, worker: Worker) -> OtherLib {
    OtherLib { name, worker, options: &[], wakeup: Polls, tuning: Tuning::Follows }
}

const fn tuned(name: &'static str, worker: Worker, options: &'static [&'static str]) -> OtherLib {
    OtherLib { name, worker, options, wakeup: Polls, tuning: Tuning::Tuned }
}

use Wakeup::{Notified, Polls};
use Worker::{BeanShell, DebianPython, Go, Java, Node, Own, Python, Rust};

pub(crate) const ON_FILES: &[OtherLib] = &[untunable(
    "distributed-lock",
    Rust("distributed-lock-file"),
    Polls,
    "polls after 10 ms, then after twice as long each time up to a second, and has no option for it",
)];

pub(crate) const ON_REDIS: &[OtherLib] = &[
    row("rslock", Rust("rslock")),
    tuned("rslock, 10 ms", Rust("rslock"), &["delay=10"]),
    untunable("distributed-lock", Rust("distributed-lock-redis"), Polls, "does not wait at all"),
    row("redis-py", Python("redis_py.py")),
    tuned("redis-py, 10 ms", Python("redis_py.py"), &["sleep=0.01"]),
    notified("python-redis-lock", Python("python_redis_lock.py")),
    row("Sherlock", Python("sherlock_lock.py")),
    tuned("Sherlock, 10 ms", Python("sherlock_lock.py"), &["retry_interval=0.01"]),
    untunable("redis-semaphore", Node("redis_semaphore.js"), Polls, "polls every 10 ms by default"),
    row("node-redlock", Node("redlock.js")),
    tuned("node-redlock, 10 ms", Node("redlock.js"), &["retryDelay=10", "retryJitter=5"]),
    row("redsync", Go("redsync")),
    tuned("redsync, 10 ms", Go("redsync"), &["delay=10"]),
    row("redislock", Go("redislock")),
    tuned("redislock, 10 ms", Go("redislock"), &["backoff=10"]),
    // With one key there is no next one, and the bound of 20 ms only excludes distant servers. Its
    // waiters learn of the end of a lease when the server removes the key: among as many keys as in
    // `killed` after minutes, so that the run leaves it out there.
    OtherLib {
        options: &["majority=1", "next=10000"],
        ..notified("rueidislock", Go("rueidislock"))
    },
    notified("Redisson", Java("redisson")),
];

pub(crate) const ON_QUORUMS: &[OtherLib] = &[
    row("rslock", Rust("rslock")),
    tuned("rslock, 10 ms", Rust("rslock"), &["delay=10"]),
    row("node-redlock", Node("redlock.js")),
    tuned("node-redlock, 10 ms", Node("redlock.js"), &["retryDelay=10", "retryJitter=5"]),
    row("redsync", Go("redsync")),
    tuned("redsync, 10 ms", Go("redsync"), &["delay=10"]),
];

pub(crate) const ON_ZOOKEEPER: &[OtherLib] = &[
    notified("zookeeper-crate", Own),
    notified("kazoo", DebianPython("kazoo_lock.py")),
    notified("curator", BeanShell("Curator.bsh")),
];

pub(crate) const ON_MEMCACHED: &[OtherLib] = &[
    untunable("memcache-crate", Own, Polls, "has no lock that could wait"),
    row("Sherlock", Python("sherlock_lock.py")),
    tuned("Sherlock, 10 ms", Python("sherlock_lock.py"), &["retry_interval=0.01"]),
];

/// The name of a library, and its version or how to install it.
pub(crate) type Found = (&'static str, Result<String, String>);

impl OtherLib {
    pub(crate) fn name(self) -> &'static str {
        self.name
    }

    /// Returns why it was measured only with its defaults: it …
    pub(crate) fn untuned(self) -> Option<&'static str> {
        match self.tuning {
            Tuning::None(why) => Some(why),
            Tuning::Tuned | Tuning::Follows => None,
        }
    }

    /// Finds the library, if it is installed.
    pub(crate) fn find(self, threads: usize) -> (Option<Lib>, Found) {
        let tuned = self.tuning == Tuning::Tuned;
        if matches!(self.worker, Own) {
            let lib = Lib::own(self.name, threads).wakeup(self.wakeup, tuned);
            return (Some(lib), (self.name, Ok("as compiled in".into())));
        }
        let mut command = self.worker.command();
        match version(&command) {
            Some(version) => {
                command.extend(self.options.iter().map(|&word| word.to_owned()));
                let lib = Lib::script(self.name, command).wakeup(self.wakeup, tuned);
                let lib = if self.worker.is_compiled_lazily() { lib.warmed_up() } else { lib };
                (Some(lib), (self.name, Ok(format!("{version}{}", self.worker.note()))))
            }
            None => (None, (self.name, Err(self.worker.installed_by()))),
        }
    }
}

impl Worker {
    fn command(self) -> Vec<String> {
        let peers = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../fleet"));
        let there = installed();
        let words = match self {
            Self::Own => vec![],
            Self::DebianPython(script) => {
                vec!["/usr/bin/python3".into(), peers.join("python").join(script)]
            }
            Self::BeanShell(script) => {
                let mut words: Vec<PathBuf> =
                    ["java", "-XX:+UseSerialGC", "-cp", JARS, "bsh.Interpreter"]
                        .map(Into::into)
                        .into();
                words.push(peers.join(script));
                words
            }
            Self::Python(script) => {
                vec![there.join("venv/bin/python"), peers.join("python").join(script)]
            }
            Self::Node(script) => {
                let packages = format!("NODE_PATH={}", there.join("node/node_modules").display());
                vec!["env".into(), packages.into(), "node".into(), peers.join("node").join(script)]
            }
            Self::Rust(lib) => vec![there.join("rust/release/lock-bench-peers"), lib.into()],
            Self::Go(lib) => vec![there.join("go-worker"), lib.into()],
            Self::Java(lib) => {
                let classes = format!("{0}:{0}/libs/*", there.join("java").display());
                ["java", "-XX:+UseSerialGC", "-cp", &classes, "Worker", lib].map(Into::into).into()
            }
        };
        words.into_iter().map(|word| word.to_string_lossy().into_owned()).collect()
    }

    /// Returns whether it is compiled while it runs, so that its first second is slower than later
    /// ones.
    fn is_compiled_lazily(self) -> bool {
        matches!(self, Self::BeanShell(_) | Self::Node(_) | Self::Java(_))
    }

    /// Returns a note on its figures.
    fn note(self) -> &'static str {
        match self {
            Self::BeanShell(_) => {
                " (its worker is interpreted by BeanShell; measured after a second of warming up)"
            }
            Self::Node(_) | Self::Java(_) => " (measured after a second of warming up)",
            _ => "",
        }
    }

    fn installed_by(self) -> String {
        match self {
            Self::Own => String::new(),
            Self::DebianPython(_) => "apt-get install python3-kazoo".into(),
            Self::BeanShell(_) => {
                "apt-get install default-jre-headless libbsh-java libcurator-recipes-java".into()
            }
            Self::Python(_) => "testing/fleet/setup python".into(),
            Self::Node(_) => "testing/fleet/setup node".into(),
            Self::Rust(_) => "testing/fleet/setup rust".into(),
            Self::Go(_) => "testing/fleet/setup go".into(),
            Self::Java(_) => "testing/fleet/setup java".into(),
        }
    }
}

const JARS: &str = "/usr/share/java/bsh.jar:/usr/share/java/zookeeper.jar:\
    /usr/share/java/curator-recipes.jar:/usr/share/java/curator-framework.jar:\
    /usr/share/java/curator-client.jar:/usr/share/java/guava.jar:/usr/share/java/slf4j-nop.jar";

/// Returns the directory of `testing/fleet/setup`: `fleet` in the target directory, which holds
/// this program, too.
fn installed() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    let mut above = program.ancestors();
    // Tests of this program are one folder deeper.
    let target =
        above.find(|path| path.join("fleet").is_dir() && !path.join("Cargo.toml").exists());
    target.unwrap_or(Path::new("target")).join("fleet")
}

fn version(command: &[String]) -> Option<String> {
    let (program, arguments) = command.split_first()?;
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !version.is_empty()).then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_without_a_version_is_missing() {
        let of = |words: &[&str]| version(&words.iter().map(|&w| w.into()).collect::<Vec<_>>());
        assert_eq!(of(&["/nowhere/at/all", "worker"]), None);
        assert_eq!(of(&["false"]), None);
        assert_eq!(of(&["true"]), None);
        assert_eq!(of(&["echo", "1.2"]).as_deref(), Some("1.2"));
    }

    #[test]
    fn a_missing_worker_is_reported() {
        let (lib, (name, version)) = row("x", Python("no_such_worker.py")).find(0);
        assert!(lib.is_none() && name == "x");
        assert_eq!(version.unwrap_err(), "testing/fleet/setup python");
    }

    /// A library that polls has a second row, or a reason against it.
    #[test]
    fn polling_libraries_have_a_tuned_row_or_a_reason() {
        for table in [ON_FILES, ON_REDIS, ON_QUORUMS, ON_ZOOKEEPER, ON_MEMCACHED] {
            for (i, other) in table.iter().enumerate() {
                let next = table.get(i + 1).filter(|next| next.tuning == Tuning::Tuned);
                let follows = next.is_some_and(|next| next.name.starts_with(other.name));
                assert_eq!(follows, other.tuning == Tuning::Follows, "{}", other.name);
            }
        }
    }
}
