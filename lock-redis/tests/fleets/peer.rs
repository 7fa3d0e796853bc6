//! Processes that lock with libraries of other languages.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use tokio::sync::mpsc;

/// How long an answer may take on a loaded machine, the start of an interpreter included.
const DEADLINE: Duration = Duration::from_secs(40);

/// From the directory of any crate of the workspace.
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../lock-redis/tests/fleets/");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    RedisPy,
    Laravel,
    Symfony,
}

/// A process of another language that locks one name. It does what it is told line by line, and answers
/// each line: see the scripts beside this file. It ends with its handle.
pub(crate) struct Peer {
    library: Library,
    child: Child,
    stdin: ChildStdin,
    answers: mpsc::UnboundedReceiver<String>,
}

impl Library {
    /// Starts one that locks on the server at `port`. The name of the lock is the first of `arguments`.
    pub(crate) fn start(self, port: u16, arguments: &[&str]) -> Peer {
        let mut command = self.command();
        command.arg(port.to_string()).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("an interpreter that was found can be started");
        let stdin = child.stdin.take().expect("it is a pipe");
        let stdout = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let (told, answers) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            // Until it has ended, or nobody listens any more.
            for line in stdout.lines().map_while(Result::ok) {
                if told.send(line).is_err() {
                    break;
                }
            }
        });
        Peer { library: self, child, stdin, answers }
    }

    /// The script, run by an interpreter that has the library.
    fn command(self) -> Command {
        static FOUND: [OnceLock<Option<&str>>; 3] = [const { OnceLock::new() }; 3];
        let (interpreters, script, packages): (&[&str], _, _) = match self {
            // Debian's own first: another one in the PATH does not find Debian's packages.
            Self::RedisPy => (&["/usr/bin/python3", "python3"], "redis_py.py", "python3-redis"),
            Self::Laravel => {
                let packages = "php-cli php-redis php-illuminate-cache php-illuminate-redis";
                (&["php"], "laravel.php", packages)
            }
            Self::Symfony => (&["php"], "symfony.php", "php-cli php-redis php-symfony-lock"),
        };
        let script_for = |interpreter: &str| {
            let mut command = Command::new(interpreter);
            if interpreter == "php" {
                // Whatever its php.ini says.
                command.args(["-d", "display_errors=stderr", "-d", "error_reporting=-1"]);
            }
            command.arg(SCRIPTS.to_owned() + script);
            command
        };
        // Told nothing, it only loads the library.
        let loads = |interpreter: &&&str| {
            let mut command = script_for(interpreter);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        };
        let found = FOUND[self as usize].get_or_init(|| interpreters.iter().find(loads).copied());
        let Some(interpreter) = found else {
            panic!("{self:?} is missing: run ./test, or apt-get install {packages}");
        };
        script_for(interpreter)
    }
}

impl Peer {
    /// Tells it to do something. It does one thing after the other.
    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("it reads what it is told");
    }

    pub(crate) async fn answer(&mut self) -> String {
        let answer = tokio::time::timeout(DEADLINE, self.answers.recv()).await;
        answer
            .unwrap_or_else(|_| panic!("{:?} has not answered within {DEADLINE:?}", self.library))
            .unwrap_or_else(|| panic!("{:?} has ended, its stderr says why", self.library))
    }

    pub(crate) async fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.answer().await
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
