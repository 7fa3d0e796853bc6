//! Lock libraries of other languages.

use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::Peer;

/// The directory of the scripts, each of which documents its commands.
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/peers/");

/// Debian's interpreter first: another one in the PATH does not find Debian's packages.
const PYTHON: &[&[&str]] = &[&["/usr/bin/python3"], &["python3"]];

/// The settings that override any php.ini.
const PHP: &[&[&str]] = &[&["php", "-d", "display_errors=stderr", "-d", "error_reporting=-1"]];

const JAVA: &[&[&str]] = &[&[
    "java",
    "-Xmx64m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-cp",
    "/usr/share/java/bsh.jar:/usr/share/java/zookeeper.jar:/usr/share/java/curator-recipes.jar:\
     /usr/share/java/curator-framework.jar:/usr/share/java/curator-client.jar:\
     /usr/share/java/guava.jar:/usr/share/java/slf4j-nop.jar",
    "bsh.Interpreter",
]];

/// A lock library of another language, and a script that locks one name with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// Python's `redis`, its `Lock`.
    RedisPy,
    /// PHP's `illuminate/cache`, its `RedisLock`.
    Laravel,
    /// PHP's `symfony/lock`, its `RedisStore`.
    Symfony,
    /// Python's `pymemcache`, which has no lock: `add`, used as most programs do.
    Pymemcache,
    /// Java's Apache Curator, its `InterProcessMutex`.
    Curator,
    /// Python's `kazoo`, its `Lock`.
    Kazoo,
}

impl Library {
    /// Starts its script, which documents the `arguments`.
    ///
    /// # Panics
    ///
    /// The library is not installed. The message says how to install it.
    #[must_use]
    pub fn start(self, arguments: &[&str]) -> Peer {
        let mut command = self.run_by(self.interpreter());
        command.args(arguments);
        Peer::start(format!("{self:?}"), command)
    }

    /// Returns an interpreter that has the library: without arguments, a script only loads it.
    fn interpreter(self) -> &'static [&'static str] {
        static FOUND: [OnceLock<Option<&[&str]>>; 6] = [const { OnceLock::new() }; 6];
        let (interpreters, _, packages) = self.needs();
        let loads = |interpreter: &&&'static [&'static str]| {
            let mut command = self.run_by(interpreter);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        FOUND[self as usize]
            .get_or_init(|| interpreters.iter().find(loads).copied())
            .unwrap_or_else(|| {
                panic!("{self:?} is missing: run ./test, or apt-get install {packages}")
            })
    }

    fn run_by(self, interpreter: &[&str]) -> Command {
        let (_, script, _) = self.needs();
        let mut command = Command::new(interpreter[0]);
        command.args(&interpreter[1..]).arg(SCRIPTS.to_owned() + script);
        command
    }

    /// Returns the interpreters to try, the script, and Debian's packages.
    fn needs(self) -> (&'static [&'static [&'static str]], &'static str, &'static str) {
        match self {
            Self::RedisPy => (PYTHON, "redis_py.py", "python3-redis"),
            Self::Laravel => {
                let packages = "php-cli php-redis php-illuminate-cache php-illuminate-redis";
                (PHP, "laravel.php", packages)
            }
            Self::Symfony => (PHP, "symfony.php", "php-cli php-redis php-symfony-lock"),
            Self::Pymemcache => (PYTHON, "pymemcache_lock.py", "python3-pymemcache"),
            Self::Curator => {
                let packages = "default-jre-headless libbsh-java libcurator-recipes-java";
                (JAVA, "curator.bsh", packages)
            }
            Self::Kazoo => (PYTHON, "kazoo_lock.py", "python3-kazoo"),
        }
    }
}
