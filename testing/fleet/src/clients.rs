//! The clients, and how their workers are started.

use std::path::Path;
use std::process::{Command, Stdio};

/// The directory of the workers.
const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// A lock client of another project.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// Its name in results, and in the names of tests.
    pub name: &'static str,
    /// The program that locks with it.
    pub program: Program,
    /// The prefix of our URL with which both use one key.
    pub prefix: &'static str,
    /// The servers on which it is checked.
    pub servers: Servers,
    /// The way in which its holders renew.
    pub renewal: Renewal,
    /// The way in which its waiters learn that the lock is free.
    pub waits: &'static str,
    /// The longest pause between two polls of a waiter on one server: the `polling_share` that it
    /// needs. Empty if none is measured.
    pub share: &'static str,
    /// A remark on the page, or nothing.
    pub remark: &'static str,
    /// The extent of its checks.
    pub extent: Extent,
}

/// The checks of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// All checks.
    All,
    /// All checks, and load with one process of each side and short leases. The client keeps the
    /// votes of attempts that failed, and its next attempts count them against it.
    LocksItselfOut,
    /// Exclusion and our wake-up: the client keeps locks in another layout.
    OtherLayout,
    /// The check of a slow network: it takes the other keys, without which it excludes nothing.
    OtherKeys,
}

/// The servers of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Servers {
    /// One server.
    One,
    /// Three servers, of which a majority decides.
    Three,
}

/// The renewal of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The client renews while the lock is held.
    ByItself,
    /// The program calls the client's method.
    ByHand,
    /// The client has no call for it.
    None,
}

/// A worker of another language. Without a URL it prints the version of its client.
#[derive(Clone, Copy, Debug)]
pub enum Program {
    /// A client of the program in `go/`, with its options.
    Go(&'static [&'static str]),
    /// A script for node.
    Node(&'static str),
    /// A script for Python, in the environment of `setup`.
    Python(&'static str),
    /// A script for Python, in the second environment of `setup`: its dependencies would change
    /// other clients.
    PythonApart(&'static str),
    /// A client of the program in `java/`.
    Java(&'static str),
    /// A script for Debian's interpreter and packages.
    Debian(Debian),
}

/// A worker with Debian's packages.
#[derive(Clone, Copy, Debug)]
pub enum Debian {
    /// A script for Python.
    Python(&'static str),
    /// A script for PHP.
    Php(&'static str),
}

impl Client {
    /// Returns the command of its worker, without a URL. `target` is the target directory.
    #[must_use]
    pub fn command(&self, target: &Path) -> Command {
        self.program.command(&target.join("fleet"))
    }

    /// Returns the version of the client.
    ///
    /// # Errors
    ///
    /// It is not installed. The text says how to install it.
    pub fn version(&self, target: &Path) -> Result<String, String> {
        let mut command = self.command(target);
        let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
        let version = output.ok().filter(|output| output.status.success());
        let version = version.map(|output| String::from_utf8_lossy(&output.stdout).trim().into());
        version.filter(|version: &String| !version.is_empty()).ok_or_else(|| self.installed_by())
    }

    /// Returns whether Debian has the client, so that every test machine has it.
    #[must_use]
    pub fn is_debians(&self) -> bool {
        matches!(self.program, Installed(_))
    }

    fn installed_by(&self) -> String {
        let language = match self.program {
            Go(_) => "go",
            Node(_) => "node",
            Python(_) | PythonApart(_) => "python",
            Java(_) => "java",
            Installed(_) => return "./test, which installs Debian's packages".into(),
        };
        format!("testing/fleet/setup {language}")
    }

    /// Returns the key of a lock on each server.
    #[must_use]
    pub fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

impl Program {
    fn command(self, installed: &Path) -> Command {
        match self {
            Self::Go(words) => {
                let mut command = Command::new(installed.join("go-worker"));
                command.args(words);
                command
            }
            Self::Node(script) => {
                let mut command = Command::new("node");
                command.env("NODE_PATH", installed.join("node/node_modules"));
                command.arg(format!("{HERE}/node/{script}.js"));
                command
            }
            Self::Python(script) => python(&installed.join("venv/bin/python"), script),
            Self::PythonApart(script) => {
                python(&installed.join("venv-aioredlock/bin/python"), script)
            }
            Self::Java(client) => {
                let classes = installed.join("java");
                let mut command = Command::new("java");
                command.args(["-Xmx96m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"]);
                command.arg(format!("{0}:{0}/libs/*", classes.display())).args(["Worker", client]);
                command
            }
            Self::Debian(Debian::Python(script)) => {
                // Another Python in the PATH does not find Debian's packages.
                python(Path::new("/usr/bin/python3"), script)
            }
            Self::Debian(Debian::Php(script)) => {
                let mut command = Command::new("php");
                command.args(["-d", "display_errors=stderr", "-d", "error_reporting=-1"]);
                // After some resets, phpredis connects again and awaits the lost reply for so long.
                command.args(["-d", "default_socket_timeout=10"]);
                command.arg(format!("{HERE}/php/{script}.php"));
                command
            }
        }
    }
}

/// Returns the command that runs a script in an interpreter of Python.
fn python(interpreter: &Path, script: &str) -> Command {
    let mut command = Command::new(interpreter);
    command.arg(format!("{HERE}/python/{script}.py"));
    command
}

const fn on_one(name: &'static str, program: Program) -> Client {
    Client {
        name,
        program,
        prefix: "",
        servers: Servers::One,
        renewal: Renewal::ByHand,
        waits: "",
        share: "",
        remark: "",
        extent: Extent::All,
    }
}

use Program::{Debian as Installed, Go, Java, Node, Python, PythonApart};

/// All clients, in the order of the page.
pub const CLIENTS: &[Client] = &[
    Client { waits: "polls, 50–250 ms", share: "250ms", ..on_one("redsync", Go(&["redsync"])) },
    Client { waits: "polls, 100 ms", share: "100ms", ..on_one("redislock", Go(&["redislock"])) },
    Client {
        prefix: "rueidislock:0:",
        renewal: Renewal::ByItself,
        waits: "is notified",
        remark: "`KeyMajority: 1`",
        // Its waiters may stop, which load shows.
        ..on_one("rueidislock", Go(&["rueidislock", "majority=1", "again=15000"]))
    },
    Client {
        prefix: "rueidislock:0:",
        renewal: Renewal::ByItself,
        waits: "is notified",
        remark: "the default: a majority of three keys, of which ours is one; set `KeyMajority: 1`",
        extent: Extent::OtherKeys,
        ..on_one("rueidislock-3-keys", Go(&["rueidislock"]))
    },
    Client { waits: "polls, 200 ± 100 ms", ..on_one("node-redlock-4", Node("redlock")) },
    Client { waits: "polls, 200 ± 100 ms", ..on_one("node-redlock-5", Node("redlock5")) },
    Client {
        prefix: "mutex:",
        renewal: Renewal::ByItself,
        waits: "polls, 10 ms",
        remark: "`Mutex`",
        ..on_one("redis-semaphore", Node("redis_semaphore"))
    },
    Client { waits: "polls, 100 ms", share: "100ms", ..on_one("redis-py", Python("redis_py")) },
    Client {
        waits: "polls, 100 ms",
        remark: "Debian's",
        ..on_one("redis-py-debian", Installed(Debian::Python("redis_py")))
    },
    Client {
        prefix: "lock:",
        renewal: Renewal::ByItself,
        waits: "is notified by its own kind; else until its own lease would end",
        ..on_one("python-redis-lock", Python("python_redis_lock"))
    },
    Client { waits: "polls, 100 ms", ..on_one("sherlock", Python("sherlock_lock")) },
    Client {
        waits: "polls, 100–300 ms",
        remark: "with a `lock_timeout`",
        ..on_one("aioredlock", PythonApart("aioredlock_lock"))
    },
    Client {
        prefix: "fleet:",
        waits: "polls, 100 ms",
        share: "100ms",
        remark: "Spring Integration's `RedisLockRegistry(…, \"fleet\", …)`, `SPIN_LOCK`",
        ..on_one("spring", Java("spring"))
    },
    Client {
        prefix: "fleet:",
        waits: "is notified by its own kind; else until its own lease would end",
        remark: "the same, `PUB_SUB_LOCK`",
        ..on_one("spring-pubsub", Java("spring-pubsub"))
    },
    Client {
        renewal: Renewal::None,
        waits: "polls, 250 ms",
        share: "250ms",
        remark: "Debian's",
        ..on_one("laravel-debian", Installed(Debian::Php("laravel")))
    },
    Client {
        waits: "polls, 90–110 ms",
        remark: "Debian's; a sorted set",
        ..on_one("symfony-debian", Installed(Debian::Php("symfony")))
    },
    Client {
        renewal: Renewal::None,
        waits: "is notified by its own kind",
        remark: "`RLock`, a hash: one name, one layout",
        extent: Extent::OtherLayout,
        ..on_one("redisson", Java("redisson"))
    },
    Client {
        servers: Servers::Three,
        waits: "polls, 50–250 ms",
        ..on_one("redsync-on-three", Go(&["redsync"]))
    },
    Client {
        servers: Servers::Three,
        waits: "polls, 200 ± 100 ms",
        ..on_one("node-redlock-4-on-three", Node("redlock"))
    },
    Client {
        servers: Servers::Three,
        waits: "polls, 200 ± 100 ms",
        remark: "votes of its failed attempts count against its next ones until the lease ends; load \
                 with one process of each side and a lease of 4 s",
        extent: Extent::LocksItselfOut,
        ..on_one("node-redlock-5-on-three", Node("redlock5"))
    },
    Client {
        servers: Servers::Three,
        prefix: "mutex:",
        renewal: Renewal::ByItself,
        waits: "polls, 10 ms",
        remark: "redis-semaphore's `RedlockMutex`",
        ..on_one("redlock-mutex-on-three", Node("redis_semaphore"))
    },
];
