//! The verbs of a lock that outlives lockctl, on every backend that has detached leases.

use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::backends::TestBackend;
use crate::support::{Running, Scratch, timed, until};

/// The output of `acquire`.
pub(crate) struct Acquired {
    pub(crate) owner: String,
    pub(crate) expires_in: Duration,
    token: Option<u64>,
}

/// Runs `lockctl acquire <arguments>`, which must acquire the lock.
pub(crate) fn acquire(scratch: &Scratch, backend: &TestBackend, arguments: &[&str]) -> Acquired {
    let (code, line, stderr) = backend.lockctl(scratch, &[&["acquire"], arguments].concat());
    assert_eq!((code, stderr.as_str(), line.lines().count()), (0, "", 1), "{arguments:?}: {line}");
    let output: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(output["name"].as_str(), arguments.last().copied(), "{line}");
    let keys: Vec<&String> = output.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["expires_in_ms", "fencing_token", "name", "owner"]);
    let token = &output["fencing_token"];
    assert!(token.is_string() || token.is_null(), "{line}");
    Acquired {
        owner: output["owner"].as_str().unwrap().to_owned(),
        expires_in: Duration::from_millis(output["expires_in_ms"].as_u64().unwrap()),
        token: token.as_str().map(|token| token.parse().unwrap()),
    }
}

/// Returns the exit status of `lockctl <arguments>`.
pub(crate) fn status(scratch: &Scratch, backend: &TestBackend, arguments: &[&str]) -> i32 {
    let (code, _, stderr) = backend.lockctl(scratch, arguments);
    let failed = code > 1;
    assert!(stderr.lines().count() <= 1 && (!failed || !stderr.is_empty()), "{arguments:?}");
    code
}

#[test]
fn a_lock_passes_between_processes_by_its_owner_id() {
    let scratch = Scratch::new();
    for backend in TestBackend::all_detached(&scratch) {
        let status = |arguments: &[&str]| status(&scratch, &backend, arguments);
        let first = acquire(&scratch, &backend, &["--ttl", "1m", "n"]);
        assert!((50..60).contains(&first.expires_in.as_secs()), "{:?}", first.expires_in);
        assert_eq!(first.owner.len(), 32);
        assert_eq!(status(&["run", "-n", "n", "--", "true"]), 75);
        assert_eq!(status(&["acquire", "-n", "n"]), 75);
        assert_eq!(status(&["acquire", "-n", "m"]), 0, "another name is another lock");
        assert_eq!(status(&["inspect", "n"]), 0);

        let (code, line, _) =
            backend.lockctl(&scratch, &["renew", "--owner", &first.owner, "--ttl", "10m", "n"]);
        let output: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((code, output["name"].as_str()), (0, Some("n")));
        assert!((580_000..600_000).contains(&output["expires_in_ms"].as_u64().unwrap()), "{line}");
        assert_eq!(status(&["renew", "--owner", &first.owner, "--ttl", "1s", "n"]), 0);
        let (_, line, _) = backend.lockctl(&scratch, &["inspect", "--json", "n"]);
        let seen: Value = serde_json::from_str(&line).unwrap();
        let expires_in = seen["holders"][0]["expires_in_ms"].as_u64().unwrap();
        assert!(expires_in > 500_000, "a renewal shortens no lease: {line}");

        let other = "6f1ed002ab5595859014ebf0951522d9";
        assert_eq!(status(&["renew", "--owner", other, "n"]), 76);
        assert_eq!(status(&["release", "--owner", other, "n"]), 76);
        assert_eq!(
            status(&["run", "-n", "n", "--", "true"]),
            75,
            "another owner id releases nothing"
        );

        assert_eq!(status(&["release", "--owner", &first.owner, "n"]), 0);
        assert_eq!(status(&["inspect", "n"]), 1);
        let second = acquire(&scratch, &backend, &["-n", "n"]);
        assert!(second.token > first.token || second.token.is_none());
        assert_ne!(second.owner, first.owner);
        assert_eq!(status(&["release", "--owner", &first.owner, "n"]), 76);
        assert_eq!(status(&["renew", "--owner", &first.owner, "n"]), 76);
        assert_eq!(
            status(&["acquire", "-n", "n"]),
            75,
            "a late release does not affect the new holder"
        );
    }
}

#[test]
fn an_acquired_lock_is_not_renewed() {
    let scratch = Scratch::new();
    for backend in TestBackend::all_detached(&scratch) {
        let (first, took) = timed(|| {
            let first = acquire(&scratch, &backend, &["--ttl", "2s", "n"]);
            acquire(&scratch, &backend, &["--wait", "20s", "n"]);
            first
        });
        assert!(first.expires_in < Duration::from_secs(2), "{:?}", first.expires_in);
        assert!(took >= Duration::from_secs(2), "not before the lease ended: {took:?}");
        assert_eq!(status(&scratch, &backend, &["release", "--owner", &first.owner, "n"]), 76);
    }
}

#[test]
fn acquire_obeys_its_wait_options() {
    let scratch = Scratch::new();
    for backend in TestBackend::all_detached(&scratch) {
        let first = acquire(&scratch, &backend, &["n"]);
        let status = |arguments: &[&str]| status(&scratch, &backend, arguments);
        assert_eq!(status(&["acquire", "-n", "-E", "9", "n"]), 9);
        assert_eq!(status(&["acquire", "-n", "-E", "0", "n"]), 0);
        let (code, took) = timed(|| status(&["acquire", "-w", "0.3", "n"]));
        assert_eq!(code, 75);
        assert!((300..10_000).contains(&took.as_millis()), "{took:?}");

        let waits = Running::start(&mut backend.command(&scratch, &["acquire", "n"]));
        waits.process().await_idle();
        let ((), took) = timed(|| {
            assert_eq!(status(&["release", "--owner", &first.owner, "n"]), 0);
            assert_eq!(waits.code(), 0);
        });
        assert!(took < Duration::from_secs(15), "at once, and not after a lease: {took:?}");
        assert_eq!(status(&["acquire", "-n", "n"]), 75, "the lock outlives lockctl");
    }
}

#[test]
fn a_signal_ends_an_acquire_that_waits_and_leaves_nothing() {
    let scratch = Scratch::new();
    for backend in TestBackend::all_detached(&scratch) {
        let first = acquire(&scratch, &backend, &["n"]);
        let waits =
            Running::start(&mut backend.command(&scratch, &["acquire", "--ttl", "1h", "n"]));
        waits.process().await_idle();
        waits.signal(Signal::SIGTERM);
        let (ended, stderr) = waits.end();
        assert_eq!((ended.signal(), stderr.as_str()), (Some(15), ""));
        assert_eq!(status(&scratch, &backend, &["release", "--owner", &first.owner, "n"]), 0);
        assert_eq!(status(&scratch, &backend, &["acquire", "-n", "n"]), 0);
    }
}

#[test]
fn a_lock_that_cannot_be_printed_is_released() {
    let scratch = Scratch::new();
    for backend in TestBackend::all_detached(&scratch) {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let mut command = backend.command(&scratch, &["acquire", "n"]);
        let output = command.stdout(full).output().unwrap();
        assert_eq!(output.status.code(), Some(70));
        assert_eq!(status(&scratch, &backend, &["inspect", "n"]), 1);

        // The reader does not read.
        let (reader, writer) = std::io::pipe().unwrap();
        fill(&writer);
        let mut command = backend.command(&scratch, &["acquire", "n"]);
        let mut waits = command.stdout(writer).stderr(Stdio::null()).spawn().unwrap();
        let waiting = nix::unistd::Pid::from_raw(waits.id().try_into().unwrap());
        until("lockctl has the lock", || status(&scratch, &backend, &["inspect", "n"]) == 0);
        nix::sys::signal::kill(waiting, Signal::SIGTERM).unwrap();
        let mut ended = None;
        until("lockctl ends", || {
            ended = waits.try_wait().unwrap();
            ended.is_some()
        });
        assert_eq!(ended.unwrap().signal(), Some(15));
        assert_eq!(status(&scratch, &backend, &["inspect", "n"]), 1);
        drop(reader);
    }
}

fn fill(pipe: &std::io::PipeWriter) {
    use std::io::Write as _;
    let flags = OFlag::from_bits_retain(fcntl(pipe, FcntlArg::F_GETFL).unwrap());
    fcntl(pipe, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).unwrap();
    while (&*pipe).write(&[b' '; 4096]).is_ok() {}
    while (&*pipe).write(b" ").is_ok() {}
    fcntl(pipe, FcntlArg::F_SETFL(flags)).unwrap();
}

#[test]
fn the_owner_may_come_from_the_environment() {
    let scratch = Scratch::new();
    for backend in TestBackend::all_detached(&scratch) {
        let first = acquire(&scratch, &backend, &["n"]);
        for verb in ["renew", "release"] {
            let with_owner = |owner: &str| {
                let mut command = backend.command(&scratch, &[verb, "n"]);
                crate::support::outcome(command.env("LOCK_OWNER", owner))
            };
            for wrong in ["", "x", &first.owner[1..]] {
                let (code, _, stderr) = with_owner(wrong);
                assert_eq!((code, stderr.lines().count()), (64, 1), "{stderr}");
                assert!(wrong.is_empty() || !stderr.contains(&first.owner[1..]), "{stderr}");
            }
            assert_eq!(with_owner(&first.owner).0, 0);
        }
        assert_eq!(status(&scratch, &backend, &["inspect", "n"]), 1);
    }
}

#[test]
fn inspect_shows_the_holder() {
    let scratch = Scratch::new();
    for backend in TestBackend::all_detached(&scratch) {
        let first = acquire(&scratch, &backend, &["--ttl", "1h", "n"]);
        let (code, text, stderr) = backend.lockctl(&scratch, &["inspect", "n"]);
        assert_eq!((code, stderr.as_str()), (0, ""));
        let me = format!(":{} ({}…)", std::process::id(), &first.owner[..8]);
        for part in ["lock \"n\" is held\n", &me, "unless renewed\n"] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
        assert!(text.contains("in 59m") || text.contains("in 1h "), "{text}");
        assert_eq!(text.contains(" ago\n"), backend.dated, "{text}");
        let token = first.token.map(|token| token.to_string()).unwrap_or_default();
        assert!(text.contains(&token), "{text}");

        let (code, line, _) = backend.lockctl(&scratch, &["inspect", "--json", "n"]);
        let seen: Value = serde_json::from_str(&line).unwrap();
        let holder = &seen["holders"][0];
        assert_eq!((code, line.lines().count(), &seen["held"]), (0, 1, &Value::Bool(true)));
        assert_eq!(holder["owner_short"].as_str(), Some(&first.owner[..8]));
        assert_eq!(holder["fencing_token"].as_str().unwrap_or_default(), token);
        assert!(holder["expires_in_ms"].as_u64().unwrap() > 3_500_000, "{line}");
        assert_eq!(
            holder["held_for_ms"].as_u64().is_some_and(|ms| ms < 60_000),
            backend.dated,
            "{line}"
        );

        let (code, line, _) = backend.lockctl(&scratch, &["inspect", "--json", "free"]);
        let seen: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            (code, &seen["held"], &seen["holders"]),
            (1, &false.into(), &Value::Array(vec![]))
        );
        let (code, text, _) = backend.lockctl(&scratch, &["inspect", "free"]);
        assert_eq!((code, text.lines().next()), (1, Some("lock \"free\" is free")));
    }
}

/// Checks that the owner id, which is a right, is shown on request only.
#[test]
fn an_owner_id_is_not_shown_unasked() {
    let scratch = Scratch::new();
    for backend in TestBackend::all_detached(&scratch) {
        let owner = acquire(&scratch, &backend, &["n"]).owner;
        let shows = |arguments: &[&str]| {
            let (_, stdout, stderr) = backend.lockctl(&scratch, arguments);
            (stdout + &stderr).contains(&owner[..9])
        };
        for arguments in [
            &["inspect", "n"][..],
            &["inspect", "--json", "n"],
            &["list"],
            &["acquire", "-n", "n"],
            &["renew", "--owner", &owner, "n"],
            &["renew", "--owner", &owner, "other"],
            &["release", "--owner", &owner, "other"],
            &["release", "--owner", &owner, "n", "m"],
            &["release", "--owner", &format!("{owner}0"), "n"],
            &["release", &format!("--owner={owner}é"), "n"],
            &["break", "--owner", &owner, "other"],
        ] {
            assert!(!shows(arguments), "{arguments:?}");
        }
        assert!(shows(&["inspect", "--show-owner", "n"]));
        assert!(shows(&["inspect", "--show-owner", "--json", "n"]));
        assert!(!shows(&["break", "--force", "n"]));
    }
}

#[test]
fn break_ends_the_hold_of_the_given_owner_only() {
    let scratch = Scratch::new();
    for backend in TestBackend::all_detached(&scratch).iter().filter(|backend| backend.breaking) {
        let status = |arguments: &[&str]| status(&scratch, backend, arguments);
        let old = acquire(&scratch, backend, &["n"]);
        assert_eq!(status(&["release", "--owner", &old.owner, "n"]), 0);
        let new = acquire(&scratch, backend, &["n"]);
        assert_eq!(status(&["break", "--owner", &old.owner, "n"]), 1, "a newer holder stays");
        assert_eq!(status(&["renew", "--owner", &new.owner, "n"]), 0);
        assert_eq!(status(&["break", "--owner", &new.owner, "n"]), 0);
        assert_eq!(status(&["renew", "--owner", &new.owner, "n"]), 76, "the hold was broken");

        acquire(&scratch, backend, &["n"]);
        let (code, stdout, stderr) = backend.lockctl(&scratch, &["break", "--force", "n"]);
        assert_eq!((code, stderr.as_str()), (0, ""));
        assert!(stdout.starts_with("lock \"n\" was broken; it was held by "), "{stdout}");
        let (code, stdout, stderr) = backend.lockctl(&scratch, &["break", "--force", "n"]);
        assert_eq!((code, stdout.as_str(), stderr.lines().count()), (1, "", 1), "{stderr}");
    }
}

#[cfg(feature = "redis")]
#[test]
fn a_hold_without_an_owner_id_cannot_be_broken() {
    let scratch = Scratch::new();
    let backend = TestBackend::redis();
    let server = backend.server.as_ref().unwrap();
    server.command(&["SET", "n", "a secret", "PX", "60000"]);
    let (code, stdout, stderr) = backend.lockctl(&scratch, &["break", "--force", "n"]);
    assert_eq!((code, stdout.as_str(), stderr.lines().count()), (64, "", 1), "{stderr}");
    let (code, text, _) = backend.lockctl(&scratch, &["inspect", "--show-owner", "n"]);
    assert_eq!(code, 0);
    assert!(text.contains("without an owner id") && !(text + &stderr).contains("secret"));
}

#[cfg(feature = "redis")]
#[test]
fn inspect_shows_the_key_and_the_type_of_a_foreign_lock() {
    let scratch = Scratch::new();
    let backend = TestBackend::redis();
    let server = backend.server.as_ref().unwrap();
    let (code, text, _) = backend.lockctl(&scratch, &["inspect", "nightly backup"]);
    assert!(code == 1 && text.contains("nightly%20backup (the name is encoded)"), "{text}");
    let (_, line, _) = backend.lockctl(&scratch, &["inspect", "--json", "nightly"]);
    assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["key"].as_str(), Some("nightly"));

    server.command(&["HSET", "n", "8743c9c0:1", "1"]);
    server.command(&["PEXPIRE", "n", "60000"]);
    assert_eq!(backend.lockctl(&scratch, &["run", "-n", "n", "--", "true"]).0, 75);
    let (code, text, _) = backend.lockctl(&scratch, &["inspect", "n"]);
    assert!(code == 0 && text.contains("a Redis hash"), "{text}");
    let owner = "00112233445566778899aabbccddeeff";
    for target in [["--force", "n"].as_slice(), &["--owner", owner, "n"]] {
        let (code, _, stderr) = backend.lockctl(&scratch, &[&["break"], target].concat());
        assert!(
            code == 64 && stderr.contains("held by a client")
                || stderr.contains("a client of another kind"),
            "{stderr}"
        );
    }
}

#[test]
fn names_pass_untouched() {
    let scratch = Scratch::new();
    let odd = "orders/42 = \"é\"\n\t$HOME {x} --";
    for backend in TestBackend::all_detached(&scratch) {
        let owner = acquire(&scratch, &backend, &[odd]).owner;
        let (_, line, _) = backend.lockctl(&scratch, &["inspect", "--json", odd]);
        assert_eq!(line.lines().count(), 1);
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["name"].as_str(), Some(odd));
        let (_, text, _) = backend.lockctl(&scratch, &["inspect", odd]);
        assert!(text.lines().next().unwrap().ends_with(" is held"), "{text}");
        assert_eq!(status(&scratch, &backend, &["release", "--owner", &owner, odd]), 0);

        let (code, line, _) = backend.lockctl(&scratch, &["acquire", "--name=-n"]);
        let output: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((code, output["name"].as_str()), (0, Some("-n")));
        let owner = output["owner"].as_str().unwrap();
        for verb in [
            &["inspect", "--name=-n"][..],
            &["renew", "--owner", owner, "--name=-n"],
            &["release", "--owner", owner, "--name=-n"],
        ] {
            assert_eq!(status(&scratch, &backend, verb), 0, "{verb:?}");
        }
    }
}

/// Races renewals with a release. In either order, the lock is free afterwards.
#[test]
fn a_renewal_that_races_a_release_does_not_bring_the_lock_back() {
    let scratch = Scratch::new();
    for backend in TestBackend::all_detached(&scratch) {
        for round in 0..20 {
            let owner = acquire(&scratch, &backend, &["--ttl", "1h", "n"]).owner;
            let start = |verb: &str| {
                Running::start(&mut backend.command(&scratch, &[verb, "--owner", &owner, "n"]))
            };
            let renewals: Vec<Running> = (0..3).map(|_| start("renew")).collect();
            let release = start("release");
            assert_eq!(release.code(), 0, "round {round}");
            for renewal in renewals {
                assert!([0, 76].contains(&renewal.code()), "round {round}");
            }
            assert_eq!(status(&scratch, &backend, &["inspect", "n"]), 1, "round {round}");
        }
    }
}
