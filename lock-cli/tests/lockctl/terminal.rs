//! Keys on a terminal, for lockctl in an interactive shell.

use crate::shell::{PROMPT, Shell};
use crate::support::{Process, Scratch, WRITE_PID, until, write_executable};

const CTRL_C: &str = "\x03";
const CTRL_Z: &str = "\x1a";
/// Writes a script that runs lockctl and records the modes of the terminal before and after.
fn write_script(scratch: &Scratch, lockctl: &str) {
    let text = format!("#!/bin/bash\nstty -g >before\n{lockctl}\nstty -g >after\ntouch went-on\n");
    write_executable(&scratch.path("script"), &text);
}

fn await_command(scratch: &Scratch) -> Process {
    let command = scratch.read_pid();
    until("the command sleeps", || command.state() == Some('S'));
    command
}

#[test]
fn ctrl_c_ends_a_script_around_lockctl() {
    let scratch = Scratch::new();
    for url in scratch.urls() {
        for inner in ["", "\"$L\" --backend memory: run inner --"] {
            // With its output in a file, the command does not get the terminal, which then
            // signals the script and lockctl.
            for output in ["", ">output"] {
                let lockctl = format!(
                    "\"$L\" --backend '{url}' run n -- {inner} sh -c '{WRITE_PID} exec sleep 60' {output}"
                );
                write_script(&scratch, &lockctl);
                let mut shell = Shell::start(&scratch);
                shell.enter("./script");
                let command = await_command(&scratch);
                shell.press(CTRL_C);
                assert_eq!(shell.status(), 130, "{lockctl}");
                assert!(!command.lives());
                assert!(!scratch.exists("went-on"), "{lockctl}");
                std::fs::remove_file(scratch.path("pid")).unwrap();
            }
        }
    }
}

#[test]
fn ctrl_c_ends_a_script_whose_lockctl_waits() {
    let scratch = Scratch::new();
    let url = scratch.url();
    let (_holder, _) = scratch.start(&url, &["n"], "write_pid; exec sleep 60");
    write_script(&scratch, &format!("echo begins; \"$L\" --backend '{url}' run n -- true"));
    let mut shell = Shell::start(&scratch);
    shell.enter("./script");
    shell.await_text("\nbegins");
    shell.press(CTRL_C);
    assert_eq!(shell.status(), 130);
    assert!(!scratch.exists("went-on"));
}

#[test]
fn a_script_continues_after_a_command_that_handles_ctrl_c() {
    let scratch = Scratch::new();
    let sleeps = "while :; do sleep 0.01; done";
    let command = format!("trap \"exit 4\" INT; {WRITE_PID} {sleeps}");
    write_script(&scratch, &format!("\"$L\" --backend memory: run n -- sh -c '{command}'"));
    let mut shell = Shell::start(&scratch);
    shell.enter("./script");
    scratch.read_pid();
    shell.press(CTRL_C);
    assert_eq!(shell.status(), 0);
    assert!(scratch.exists("went-on"));
}

#[test]
fn ctrl_z_stops_everything_and_fg_resumes_it() {
    let scratch = Scratch::new();
    // The command reads from the terminal afterwards, which only the foreground may.
    let command = format!("sh -c '{WRITE_PID} read line; exit $line'");
    for url in scratch.urls() {
        let plain = format!("\"$L\" --backend '{url}' run n -- {command}");
        let nested = format!("\"$L\" --backend '{url}' run m -- {plain}");
        write_script(&scratch, &format!("{nested}\nexit $?"));
        for line in [plain.as_str(), nested.as_str(), "./script"] {
            let mut shell = Shell::start(&scratch);
            shell.enter(line);
            let command = await_command(&scratch);
            for _ in 0..2 {
                shell.press(CTRL_Z);
                shell.await_text("Stopped");
                shell.await_text(PROMPT);
                assert_eq!(command.state(), Some('T'), "{line}");
                shell.enter("fg");
                until("the command resumes", || command.state() == Some('S'));
            }
            shell.enter("6");
            assert_eq!(shell.status(), 6, "{line}");
            std::fs::remove_file(scratch.path("pid")).unwrap();
        }
    }
}

/// Presses Ctrl-Z in a container without a shell, which could not resume lockctl.
#[cfg(feature = "__tools")]
#[test]
fn ctrl_z_in_a_container_stops_nothing() {
    let scratch = Scratch::new();
    let reads = "while read line; do echo \"<$line>\"; done";
    let arguments = ["--backend", "memory:", "run", "n", "--", "sh", "-c", reads];
    let mut terminal = Shell::of_container(&scratch, &arguments);
    for line in ["one", "two", "three"] {
        terminal.enter(line);
        terminal.await_text(&format!("<{line}>"));
        terminal.press(CTRL_Z);
    }
}

#[test]
fn ctrl_z_stops_a_whole_pipeline() {
    let scratch = Scratch::new();
    // Not a shell that starts programs: it cannot be stopped meanwhile.
    nix::unistd::mkfifo(&scratch.path("go"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let command = format!("sh -c '{WRITE_PID} read line <go; echo gone'");
    let plain = format!("\"$L\" --backend memory: run n -- {command}");
    for line in [plain.clone(), format!("\"$L\" --backend memory: run m -- {plain}")] {
        let mut shell = Shell::start(&scratch);
        shell.enter(&format!("{line} | cat"));
        let command = await_command(&scratch);
        shell.press(CTRL_Z);
        shell.await_text("Stopped");
        shell.await_text(PROMPT);
        assert_eq!(command.state(), Some('T'), "{line}");
        shell.enter("fg");
        until("the command resumes", || command.state() == Some('S'));
        std::fs::write(scratch.path("go"), "on\n").unwrap();
        shell.await_text("\ngone");
        assert_eq!(shell.status(), 0, "{line}");
        std::fs::remove_file(scratch.path("pid")).unwrap();
    }
}

#[test]
fn ctrl_z_without_a_shell_stops_nothing() {
    let scratch = Scratch::new();
    let mut shell = Shell::start(&scratch);
    // lockctl replaces the shell, as with `ssh -t host lockctl …`.
    let command = format!("sh -c '{WRITE_PID} read line; exit $line'");
    shell.enter(&format!("exec \"$L\" --backend memory: run n -- {command}"));
    await_command(&scratch);
    shell.press(CTRL_Z);
    shell.await_text("^Z");
    shell.enter("6");
    let mut status = None;
    until("lockctl ends", || {
        status = shell.status_of_bash();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(6));
}

#[test]
fn ctrl_z_stops_a_lockctl_in_its_minimum_hold() {
    let scratch = Scratch::new();
    let url = scratch.url();
    let mut shell = Shell::start(&scratch);
    shell.enter(&format!(
        "\"$L\" --backend '{url}' run --min-hold 1h n -- sh -c '{WRITE_PID} exec true'"
    ));
    let command = scratch.read_pid();
    // Until then, the keys go to the command's group.
    until("lockctl has reaped the command", || command.is_reaped());
    shell.press(CTRL_Z);
    shell.await_text("Stopped");
    shell.await_text(PROMPT);
    shell.enter("fg");
    shell.await_text("run --min-hold");
    shell.press(CTRL_C);
    assert_eq!(shell.status(), 130);
}

#[test]
fn a_killed_command_leaves_the_terminal_modes_restored() {
    let scratch = Scratch::new();
    let url = scratch.url();
    let raw = format!("stty raw -echo; {WRITE_PID} exec sleep 60");
    write_script(
        &scratch,
        &format!("\"$L\" --backend '{url}' run --ttl 300ms n -- sh -c '{raw}'; echo status: $?."),
    );
    let mut shell = Shell::start(&scratch);
    shell.enter("./script");
    await_command(&scratch);
    std::fs::remove_file(scratch.locks().join("n.lock")).unwrap();
    shell.await_text("status: 76.");
    assert_eq!(shell.status(), 0);
    assert_eq!(scratch.read("before"), scratch.read("after"));
}

#[test]
fn a_command_may_change_the_terminal_modes() {
    let scratch = Scratch::new();
    write_script(&scratch, "\"$L\" --backend memory: run n -- stty -echo");
    let mut shell = Shell::start(&scratch);
    shell.enter("./script; stty echo");
    assert_eq!(shell.status(), 0);
    assert_ne!(scratch.read("before"), scratch.read("after"));
}
