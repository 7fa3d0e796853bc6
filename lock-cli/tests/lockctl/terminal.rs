//! Keys on a terminal: an interactive shell on a pseudo-terminal, and lockctl in it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use nix::fcntl::OFlag;
use nix::pty::{grantpt, posix_openpt, ptsname_r, unlockpt};

use crate::support::{Process, Scratch, TELL_PID, until, write_executable};

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";
const PROMPT: &str = "ready> ";

/// bash(1), as somebody uses it who sits at a terminal. Ends with the test.
struct Shell {
    bash: Child,
    keys: File,
    shown: Arc<Mutex<Vec<u8>>>,
    /// How much of that was read.
    read: usize,
}

impl Shell {
    /// In the directory of the test, with lockctl as `$L`.
    fn start(scratch: &Scratch) -> Self {
        // Not openpty(3): what is started would inherit the keys, and the terminal never hang up.
        let keys = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).unwrap();
        grantpt(&keys).unwrap();
        unlockpt(&keys).unwrap();
        let mut open = File::options();
        open.read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits());
        let terminal = open.open(ptsname_r(&keys).unwrap()).unwrap();
        let terminal = || Stdio::from(terminal.try_clone().unwrap());
        let bash = Command::new("setsid")
            .args(["--ctty", "bash", "--norc", "--noprofile", "-i"])
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
        // Until the last process that has the terminal is gone.
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = screen.read(&mut buffer) {
                copy.lock().unwrap().extend_from_slice(&buffer[..length]);
            }
        });
        let mut shell = Self { bash, keys, shown, read: 0 };
        shell.await_text(PROMPT);
        shell
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn enter(&mut self, line: &str) {
        self.press(&format!("{line}\n"));
    }

    /// Waits until the terminal shows `text`, after what was read before.
    fn await_text(&mut self, text: &str) {
        let mut end = None;
        until(&format!("the terminal shows {text:?}"), || {
            let shown = self.shown.lock().unwrap();
            let unread = &shown[self.read..];
            end = unread.windows(text.len()).position(|found| found == text.as_bytes());
            end.is_some()
        });
        self.read += end.unwrap() + text.len();
    }

    /// Waits for the prompt. The status of the last line.
    fn status(&mut self) -> i32 {
        self.await_text(PROMPT);
        self.enter("echo status: $?.");
        // What was typed is shown as well.
        self.await_text("\nstatus: ");
        let start = self.read;
        self.await_text(".");
        let shown = self.shown.lock().unwrap();
        std::str::from_utf8(&shown[start..self.read - 1]).unwrap().parse().unwrap()
    }
}

impl Drop for Shell {
    /// Its session hangs up with it.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let shown = self.shown.lock().unwrap();
            eprintln!("the terminal showed:\n{}", String::from_utf8_lossy(&shown));
        }
        let _ = self.bash.kill();
        let _ = self.bash.wait();
    }
}

/// A script with lockctl in its middle. It writes down the modes of the terminal before and after.
fn write_script(scratch: &Scratch, lockctl: &str) {
    let text = format!("#!/bin/bash\nstty -g >before\n{lockctl}\nstty -g >after\ntouch went-on\n");
    write_executable(&scratch.path("script"), &text);
}

fn runs(scratch: &Scratch) -> Process {
    let command = scratch.read_pid();
    until("the command sleeps", || command.state() == Some('S'));
    command
}

#[test]
fn ctrl_c_ends_a_script_around_lockctl() {
    let scratch = Scratch::new();
    for url in scratch.urls() {
        for inner in ["", "\"$L\" --backend memory: run inner --"] {
            // Then the terminal is not handed over, and signals the script and lockctl.
            for output in ["", ">output"] {
                let lockctl = format!(
                    "\"$L\" --backend '{url}' run n -- {inner} sh -c '{TELL_PID} exec sleep 60' {output}"
                );
                write_script(&scratch, &lockctl);
                let mut shell = Shell::start(&scratch);
                shell.enter("./script");
                let command = runs(&scratch);
                shell.press(CTRL_C);
                assert_eq!(shell.status(), 130, "{lockctl}");
                assert!(!command.lives());
                assert!(!scratch.exists("went-on"), "{lockctl}");
                std::fs::remove_file(scratch.path("pid")).unwrap();
            }
        }
    }
}

#[cfg(feature = "file")]
#[test]
fn ctrl_c_ends_a_script_whose_lockctl_waits() {
    let scratch = Scratch::new();
    let url = scratch.url();
    let script = format!("{TELL_PID} exec sleep 60");
    let holder = scratch.run(&url, &["n", "--", "sh", "-c", &script]);
    let _holder = crate::support::Running::start(&mut { holder });
    scratch.read_pid();
    write_script(&scratch, &format!("echo begins; \"$L\" --backend '{url}' run n -- true"));
    let mut shell = Shell::start(&scratch);
    shell.enter("./script");
    shell.await_text("\nbegins");
    shell.press(CTRL_C);
    assert_eq!(shell.status(), 130);
    assert!(!scratch.exists("went-on"));
}

#[test]
fn a_script_goes_on_after_a_command_that_has_an_answer_to_ctrl_c() {
    let scratch = Scratch::new();
    let sleeps = "while :; do sleep 0.01; done";
    let command = format!("trap \"exit 4\" INT; {TELL_PID} {sleeps}");
    write_script(&scratch, &format!("\"$L\" --backend memory: run n -- sh -c '{command}'"));
    let mut shell = Shell::start(&scratch);
    shell.enter("./script");
    scratch.read_pid();
    shell.press(CTRL_C);
    assert_eq!(shell.status(), 0);
    assert!(scratch.exists("went-on"));
}

#[test]
fn ctrl_z_stops_everything_and_fg_lets_it_go_on() {
    let scratch = Scratch::new();
    // Reads from the terminal afterwards, which only the foreground may.
    let command = format!("sh -c '{TELL_PID} read line; exit $line'");
    for url in scratch.urls() {
        let plain = format!("\"$L\" --backend '{url}' run n -- {command}");
        let nested = format!("\"$L\" --backend '{url}' run m -- {plain}");
        write_script(&scratch, &format!("{nested}\nexit $?"));
        for line in [plain.as_str(), nested.as_str(), "./script"] {
            let mut shell = Shell::start(&scratch);
            shell.enter(line);
            let command = runs(&scratch);
            for _ in 0..2 {
                shell.press(CTRL_Z);
                shell.await_text("Stopped");
                shell.await_text(PROMPT);
                assert_eq!(command.state(), Some('T'), "{line}");
                shell.enter("fg");
                until("it goes on", || command.state() == Some('S'));
            }
            shell.enter("6");
            assert_eq!(shell.status(), 6, "{line}");
            std::fs::remove_file(scratch.path("pid")).unwrap();
        }
    }
}

#[test]
fn ctrl_z_in_a_pipeline_stops_the_whole_of_it() {
    let scratch = Scratch::new();
    // A shell that starts programs is no good here: while it does, it cannot be stopped.
    nix::unistd::mkfifo(&scratch.path("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let command = format!("sh -c '{TELL_PID} read line <go; echo gone'");
    let plain = format!("\"$L\" --backend memory: run n -- {command}");
    for line in [plain.clone(), format!("\"$L\" --backend memory: run m -- {plain}")] {
        let mut shell = Shell::start(&scratch);
        shell.enter(&format!("{line} | cat"));
        let command = runs(&scratch);
        shell.press(CTRL_Z);
        shell.await_text("Stopped");
        shell.await_text(PROMPT);
        assert_eq!(command.state(), Some('T'), "{line}");
        shell.enter("fg");
        until("it goes on", || command.state() == Some('S'));
        std::fs::write(scratch.path("go"), "on\n").unwrap();
        shell.await_text("\ngone");
        assert_eq!(shell.status(), 0, "{line}");
        std::fs::remove_file(scratch.path("pid")).unwrap();
    }
}

#[test]
fn ctrl_z_without_a_shell_to_go_on_stops_nothing_for_good() {
    let scratch = Scratch::new();
    let mut shell = Shell::start(&scratch);
    // In the place of the shell, as with `ssh -t host lockctl …`.
    let command = format!("sh -c '{TELL_PID} read line; exit $line'");
    shell.enter(&format!("exec \"$L\" --backend memory: run n -- {command}"));
    runs(&scratch);
    shell.press(CTRL_Z);
    shell.await_text("^Z");
    shell.enter("6");
    let mut status = None;
    until("lockctl ends", || {
        status = shell.bash.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(6));
}

#[cfg(feature = "file")]
#[test]
fn ctrl_z_stops_a_lockctl_that_only_keeps_others_out() {
    let scratch = Scratch::new();
    let url = scratch.url();
    let mut shell = Shell::start(&scratch);
    shell.enter(&format!(
        "\"$L\" --backend '{url}' run --at-least 1h n -- sh -c '{TELL_PID} exec true'"
    ));
    let command = scratch.read_pid();
    // Until then, keys are for the command's group.
    until("the command has ended and lockctl has seen it", || command.is_buried());
    shell.press(CTRL_Z);
    shell.await_text("Stopped");
    shell.await_text(PROMPT);
    shell.enter("fg");
    shell.await_text("run --at-least");
    shell.press(CTRL_C);
    assert_eq!(shell.status(), 130);
}

#[cfg(feature = "file")]
#[test]
fn the_terminal_is_as_before_after_a_command_that_was_killed() {
    let scratch = Scratch::new();
    let url = scratch.url();
    let raw = format!("stty raw -echo; {TELL_PID} exec sleep 60");
    write_script(
        &scratch,
        &format!("\"$L\" --backend '{url}' run --ttl 300ms n -- sh -c '{raw}'; echo status: $?."),
    );
    let mut shell = Shell::start(&scratch);
    shell.enter("./script");
    runs(&scratch);
    std::fs::remove_file(scratch.locks().join("n.lock")).unwrap();
    shell.await_text("status: 76.");
    assert_eq!(shell.status(), 0);
    assert_eq!(scratch.read("before"), scratch.read("after"));
}

#[test]
fn the_terminal_is_as_the_command_leaves_it() {
    let scratch = Scratch::new();
    write_script(&scratch, "\"$L\" --backend memory: run n -- stty -echo");
    let mut shell = Shell::start(&scratch);
    shell.enter("./script; stty echo");
    assert_eq!(shell.status(), 0);
    assert_ne!(scratch.read("before"), scratch.read("after"));
}
