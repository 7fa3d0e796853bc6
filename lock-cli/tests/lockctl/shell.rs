//! An interactive shell on a pseudo-terminal.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use nix::fcntl::OFlag;
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};

use crate::support::{Scratch, until};

pub(crate) const PROMPT: &str = "ready> ";

/// An interactive bash(1), as at a terminal. Ends with the test.
pub(crate) struct Shell {
    bash: Child,
    keys: File,
    shown: Arc<Mutex<Vec<u8>>>,
    /// The number of bytes of it that were read.
    read: usize,
}

impl Shell {
    /// Starts a shell in the directory of the test, with lockctl as `$L`.
    pub(crate) fn start(scratch: &Scratch) -> Self {
        let mut shell = Self::begin(scratch, &["bash", "--norc", "--noprofile", "-i"], &[]);
        shell.await_text(PROMPT);
        shell
    }

    /// Starts lockctl itself, without a shell, as the only process of a container.
    #[cfg(feature = "__tools")]
    pub(crate) fn of_container(scratch: &Scratch, arguments: &[&str]) -> Self {
        let unshare =
            ["--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"];
        let command = [&[env!("CARGO_BIN_EXE_lockctl")], arguments].concat();
        Self::begin(scratch, &command, &[&["unshare"], &unshare[..]].concat())
    }

    /// Starts the leader of a session, inside the program `around`.
    fn begin(scratch: &Scratch, command: &[&str], around: &[&str]) -> Self {
        // Not openpty(3): the process would inherit `keys`, and the terminal would never hang up.
        let keys = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let mut open = File::options();
        open.read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits());
        let terminal = open.open(ptsname_r(&keys).unwrap()).unwrap();
        let terminal = || Stdio::from(terminal.try_clone().unwrap());
        let bash = Command::new("env")
            .args(around)
            .args(["setsid", "--ctty"])
            .args(command)
            .env("L", env!("CARGO_BIN_EXE_lockctl"))
            .env("PS1", PROMPT)
            .env("TERM", "dumb")
            .env("LC_ALL", "C")
            .env("HISTFILE", "/dev/null")
            .env_remove("LOCK_BACKEND")
            .env_remove("PROMPT_COMMAND")
            .current_dir(scratch.path(""))
            .stdin(terminal())
            .stdout(terminal())
            .stderr(terminal())
            .spawn()
            .unwrap();
        let keys = File::from(OwnedFd::from(keys));
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut screen, copy) = (keys.try_clone().unwrap(), Arc::clone(&shown));
        // Ends with the last process that has the terminal.
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = screen.read(&mut buffer) {
                copy.lock().unwrap().extend_from_slice(&buffer[..length]);
            }
        });
        Self { bash, keys, shown, read: 0 }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.bash.id()
    }

    /// Returns the exit status of bash itself, if it has ended.
    pub(crate) fn status_of_bash(&mut self) -> Option<ExitStatus> {
        self.bash.try_wait().unwrap()
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    pub(crate) fn enter(&mut self, line: &str) {
        self.press(&format!("{line}\n"));
    }

    /// Waits until the terminal shows `text`, after the text that was read before.
    pub(crate) fn await_text(&mut self, text: &str) {
        let mut end = None;
        until(&format!("the terminal shows {text:?}"), || {
            let shown = self.shown.lock().unwrap();
            let unread = &shown[self.read..];
            end = unread.windows(text.len()).position(|found| found == text.as_bytes());
            end.is_some()
        });
        self.read += end.unwrap() + text.len();
    }

    /// Waits for the prompt. Returns the exit status of the last line.
    pub(crate) fn status(&mut self) -> i32 {
        self.await_text(PROMPT);
        self.enter("echo status: $?.");
        // The terminal echoes the typed line as well.
        self.await_text("\nstatus: ");
        let start = self.read;
        self.await_text(".");
        let shown = self.shown.lock().unwrap();
        std::str::from_utf8(&shown[start..self.read - 1]).unwrap().parse().unwrap()
    }
}

impl Drop for Shell {
    /// Ends the shell, which hangs up its session.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let shown = self.shown.lock().unwrap();
            eprintln!("the terminal showed:\n{}", String::from_utf8_lossy(&shown));
        }
        let _ = self.bash.kill();
        let _ = self.bash.wait();
    }
}
