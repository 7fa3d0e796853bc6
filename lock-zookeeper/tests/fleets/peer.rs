//! Processes that lock with libraries of other languages.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use tokio::sync::mpsc;

/// How long an answer may take on a loaded machine, the start of an interpreter included.
const DEADLINE: Duration = Duration::from_secs(40);

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fleets/");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    Curator,
    Kazoo,
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
    /// Starts one that locks the node `path` on the server at `addr`.
    pub(crate) fn start(self, addr: SocketAddr, path: &str) -> Peer {
        self.must_be_there();
        let mut command = self.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
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
        let mut peer = Peer { library: self, child, stdin, answers };
        peer.tell(&format!("{addr} {path}"));
        peer
    }

    fn command(self) -> Command {
        match self {
            Self::Curator => {
                let jars = [
                    "bsh",
                    "zookeeper",
                    "curator-recipes",
                    "curator-framework",
                    "curator-client",
                    "guava",
                    "slf4j-nop",
                ];
                let jars = jars.map(|jar| format!("/usr/share/java/{jar}.jar")).join(":");
                let mut command = Command::new("java");
                command.args(["-Xmx64m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]);
                command.args(["-cp", &jars, "bsh.Interpreter"]);
                command.arg(SCRIPTS.to_owned() + "Curator.bsh");
                command
            }
            Self::Kazoo => {
                // Debian's own: another one in the PATH does not find Debian's packages.
                let mut command = Command::new("/usr/bin/python3");
                command.arg(SCRIPTS.to_owned() + "kazoo_lock.py");
                command
            }
        }
    }

    /// Told nothing, a script only loads its library.
    fn must_be_there(self) {
        static FOUND: [OnceLock<bool>; 2] = [const { OnceLock::new() }; 2];
        let packages = match self {
            Self::Curator => "default-jre-headless libbsh-java libcurator-recipes-java",
            Self::Kazoo => "python3-kazoo",
        };
        let found = FOUND[self as usize].get_or_init(|| {
            let mut command = self.command();
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok_and(|status| status.success())
        });
        assert!(found, "{self:?} is missing: run ./test, or apt-get install {packages}");
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
