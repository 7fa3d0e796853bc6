//! Lock libraries of other languages: Debian's and, for ZooKeeper, pinned versions from the package
//! registries. These run if `ZOOKEEPER_CLIENTS` names the directory in which `testing/fleet/setup`
//! has installed them.

use std::path::Path;
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
    JARS,
    "bsh.Interpreter",
]];

const JARS: &str = "/usr/share/java/bsh.jar:/usr/share/java/zookeeper.jar:\
    /usr/share/java/curator-recipes.jar:/usr/share/java/curator-framework.jar:\
    /usr/share/java/curator-client.jar:/usr/share/java/guava.jar:/usr/share/java/slf4j-nop.jar";

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
    /// Go's `go-zookeeper/zk`, its `Lock`; pinned only.
    GoZookeeper,
}

impl Library {
    /// Returns the libraries for ZooKeeper.
    #[must_use]
    pub fn for_zookeeper() -> &'static [Self] {
        let all = &[Self::Curator, Self::Kazoo, Self::GoZookeeper];
        if installed().is_some() { all } else { &all[..2] }
    }

    /// Starts its script, which documents the `arguments`.
    ///
    /// # Panics
    ///
    /// The library is not installed. The message says how to install it.
    #[must_use]
    pub fn start(self, arguments: &[&str]) -> Peer {
        let mut command = self.pinned().unwrap_or_else(|| self.run_by(self.interpreter()));
        command.args(arguments);
        Peer::start(format!("{self:?}"), command)
    }

    /// Returns the command of the pinned version, if it is to run.
    fn pinned(self) -> Option<Command> {
        let installed = installed()?;
        let find = |path: &str, language: &str| {
            let path = format!("{installed}/{path}");
            assert!(Path::new(&path).exists(), "no {path}: run testing/fleet/setup {language}");
            path
        };
        match self {
            Self::Curator => {
                let jars = format!("/usr/share/java/bsh.jar:{}/*", find("java/libs", "java"));
                let words = JAVA[0].iter().map(|&word| if word == JARS { &jars } else { word });
                Some(self.run_by(&words.collect::<Vec<_>>()))
            }
            Self::Kazoo => Some(self.run_by(&[&find("venv/bin/python", "python")])),
            Self::GoZookeeper => Some(Command::new(find("go-zookeeper", "go"))),
            _ => None,
        }
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
            Self::GoZookeeper => panic!(
                "go-zookeeper is missing: run testing/fleet/setup go, and set \
                 ZOOKEEPER_CLIENTS=$PWD/target/fleet"
            ),
        }
    }
}

/// Returns the directory of the pinned versions, if they are to run.
fn installed() -> Option<String> {
    std::env::var("ZOOKEEPER_CLIENTS").ok()
}
