//! `lockctl list` and `top`: held locks, by lines and as a table.

use nix::sys::signal::Signal;

use crate::backends::TestBackend;
use crate::shell::Shell;
#[cfg(feature = "redis")]
use crate::support::outcome;
use crate::support::{Scratch, WRITE_PID};

const CTRL_C: &str = "\x03";
/// The sequence that leaves the other screen of the terminal.
const LEAVES: &str = "\x1b[?1049l";

/// Holds a lock for longer than the test.
fn acquire(scratch: &Scratch, backend: &TestBackend, name: &str) {
    let (code, _, stderr) = backend.lockctl(scratch, &["acquire", "--ttl", "10m", name]);
    assert_eq!(code, 0, "{stderr}");
}

fn backends(scratch: &Scratch) -> impl Iterator<Item = TestBackend> {
    TestBackend::all_detached(scratch).into_iter().filter(|backend| backend.listing)
}

#[test]
fn held_locks_are_listed_in_order_one_a_line() {
    let scratch = Scratch::new();
    for backend in backends(&scratch) {
        for name in ["jobs/2", "jobs/1", "other", "a\u{1b}[2Jb"] {
            acquire(&scratch, &backend, name);
        }
        let listed = |arguments: &[&str]| {
            let (code, stdout, stderr) =
                backend.lockctl(&scratch, &[&["list"], arguments].concat());
            assert_eq!((code, stderr.as_str()), (0, ""), "no heading where stdout is no terminal");
            let first = |line: &str| line.split('\t').next().unwrap().to_owned();
            stdout.lines().map(first).collect::<Vec<_>>()
        };
        let names = [r#""a\u{1b}[2Jb""#, r#""jobs/1""#, r#""jobs/2""#, r#""other""#];
        assert_eq!(listed(&[]), names, "{}", backend.scheme);
        assert_eq!(listed(&["--prefix", "jobs/"]), names[1..3]);
        assert_eq!(listed(&["--prefix", "none"]), [""; 0]);
        let json = listed(&["--json", "--prefix", "other"]);
        assert!(json[0].contains(r#""name":"other","held":true"#), "{json:?}");
    }
}

#[test]
fn a_snapshot_is_a_table_without_terminal_control() {
    let scratch = Scratch::new();
    for backend in backends(&scratch) {
        let (code, table, stderr) = backend.lockctl(&scratch, &["top", "--once"]);
        assert_eq!((code, stderr.as_str(), table.lines().count()), (0, "", 3), "{table}");
        assert!(table.starts_with("0 locks are held"), "{table}");
        acquire(&scratch, &backend, "a\u{1b}[2Jb");
        acquire(&scratch, &backend, "n");
        let (_, table, _) = backend.lockctl(&scratch, &["top", "--once", "--prefix", "n"]);
        assert!(table.starts_with("1 lock is held with names that begin with \"n\"\n"), "{table}");
        let (_, table, _) = backend.lockctl(&scratch, &["top", "--once"]);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 5, "{table}");
        assert!(lines[2].starts_with("LOCK ") && lines[3].starts_with(r#""a\u{1b}[2Jb" "#));
        assert!(lines[4].starts_with("\"n\" ") && lines[4].contains(" 9m 5"), "{table}");
        assert!(!table.contains('\u{1b}'), "{table}");
    }
}

#[cfg(feature = "redis")]
#[test]
fn strings_of_other_programs_are_no_locks_unless_a_prefix_says_so() {
    let scratch = Scratch::new();
    let backend = TestBackend::redis();
    let mut server = backend.server.as_ref().unwrap().connect().unwrap();
    server.command(&["SET", "app:session", "\u{1b}]0;title\u{7}"]).unwrap();
    let label = "00112233445566778899aabbccddeeff 17 \u{1b}]0;title\u{7}";
    server.command(&["SET", "app:ours", label, "PX", "300000"]).unwrap();
    let url = format!("{}?prefix=app:", backend.url);
    for (arguments, locks) in [
        (&["--backend", backend.url.as_str()][..], &["\"app:ours\""][..]),
        (&["--backend", &backend.url, "--prefix", "app:s"], &["\"app:session\""]),
        (&["--backend", &url], &["\"ours\"", "\"session\""]),
    ] {
        let (_, list, _) = outcome(scratch.lockctl(&["list"]).args(arguments));
        let (_, table, _) = outcome(scratch.lockctl(&["top", "--once"]).args(arguments));
        assert_eq!(list.lines().count(), locks.len(), "{list}");
        for lock in locks {
            assert!(list.contains(&format!("{lock}\t")) && table.contains(lock), "{list}{table}");
        }
        let is_control = |char: char| char.is_control() && !"\t\n".contains(char);
        assert!(!(list + &table).contains(is_control), "{table}");
        let says_so = table.lines().next().unwrap().contains("by this library");
        assert_eq!(says_so, arguments == ["--backend", backend.url.as_str()], "{table}");
    }
}

#[test]
fn a_terminal_has_a_heading() {
    let scratch = Scratch::new();
    let backend = TestBackend::file(&scratch);
    acquire(&scratch, &backend, "n");
    let mut shell = Shell::start(&scratch);
    shell.enter(&format!("\"$L\" --backend '{}' list --prefix n", backend.url));
    shell.await_text("\nheld locks with names that begin with \"n\"");
    shell.await_text("\n\"n\"\t");
    assert_eq!(shell.status(), 0);
}

#[test]
fn a_table_needs_a_terminal() {
    let scratch = Scratch::new();
    let backend = TestBackend::file(&scratch);
    let (code, stdout, stderr) = backend.lockctl(&scratch, &["top"]);
    assert_eq!((code, stdout.as_str(), stderr.lines().count()), (64, "", 1), "{stderr}");
    assert!(stderr.contains("--once"), "{stderr}");
}

/// Starts a table in a script that records the modes of the terminal before and after.
fn start_table(scratch: &Scratch, backend: &TestBackend) -> Shell {
    let mut shell = Shell::start(scratch);
    let top = format!("exec \"$L\" --backend \"{}\" top --interval 50ms", backend.url);
    shell.enter(&format!("stty -g >before; sh -c '{WRITE_PID} {top}'"));
    shell.await_text("\x1b[?1049h");
    shell.await_text("HOLDER");
    shell
}

fn has_restored(scratch: &Scratch, mut shell: Shell) -> i32 {
    shell.await_text(LEAVES);
    let status = shell.status();
    shell.enter("stty -g >after");
    assert_eq!(shell.status(), 0);
    assert_eq!(scratch.read("before"), scratch.read("after"));
    status
}

#[test]
fn a_table_goes_on_until_q() {
    let scratch = Scratch::new();
    let backend = TestBackend::file(&scratch);
    acquire(&scratch, &backend, "early");
    let mut shell = start_table(&scratch, &backend);
    shell.await_text("\"early\"");
    shell.press("x");
    acquire(&scratch, &backend, "late");
    shell.await_text("\"late\"");
    shell.press("q");
    assert_eq!(has_restored(&scratch, shell), 0);
}

#[test]
fn a_signal_ends_a_table_and_restores_the_terminal() {
    let scratch = Scratch::new();
    let backend = TestBackend::file(&scratch);
    let mut shell = start_table(&scratch, &backend);
    shell.press("\x1a");
    shell.press(CTRL_C);
    assert_eq!(has_restored(&scratch, shell), 130, "Ctrl-Z does nothing");
    std::fs::remove_file(scratch.path("pid")).unwrap();
    let shell = start_table(&scratch, &backend);
    scratch.read_pid().signal(Signal::SIGTERM);
    assert_eq!(has_restored(&scratch, shell), 143);
}

/// Shows an outage in place of the table, and the table again after it.
#[cfg(feature = "redis")]
#[test]
fn a_table_outlives_an_outage() {
    use test_servers::KeepData;

    let scratch = Scratch::new();
    let backend = TestBackend::redis();
    let mut shell = start_table(&scratch, &backend);
    let server = backend.server.as_ref().unwrap();
    server.kill();
    shell.await_text("no answer");
    server.restart(KeepData::No);
    acquire(&scratch, &backend, "new");
    shell.await_text("\"new\"");
    shell.press("q");
    assert_eq!(has_restored(&scratch, shell), 0);
}

/// The server may come back any time, so the table stays.
#[cfg(feature = "redis")]
#[test]
fn a_table_that_is_old_says_so() {
    let scratch = Scratch::new();
    let backend = TestBackend::redis();
    let mut shell = start_table(&scratch, &backend);
    backend.server.as_ref().unwrap().stop();
    shell.await_text("no answer for ");
    shell.press("q");
    assert_eq!(has_restored(&scratch, shell), 0);
}
