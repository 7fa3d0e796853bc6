//! `lockctl doctor`, on directories and servers that are set up well, and on others.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;

use crate::support::{Scratch, outcome};

/// Returns the exit status of `lockctl doctor --json`, and the findings.
pub(crate) fn findings(scratch: &Scratch, url: &str) -> (i32, Vec<Value>) {
    let (status, stdout, stderr) = outcome(&mut scratch.lockctl(&["doctor", "--json", url]));
    assert_eq!(stderr, "", "{url}");
    let findings: Vec<Value> = stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{line}: {why}")))
        .collect();
    let severity = |severity: &str| findings.iter().any(|finding| finding["severity"] == severity);
    let expected = match (severity("failure"), severity("warning")) {
        (true, _) => 69,
        (false, true) => 1,
        (false, false) => 0,
    };
    assert_eq!(status, expected, "{stdout}");
    (status, findings)
}

/// Returns the findings of `check`, as severity, server and text.
pub(crate) fn of_check(findings: &[Value], check: &str) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let found = findings.iter().filter(|finding| finding["check"] == check);
    let shown = |it: &Value| (text(&it["severity"]), text(&it["server"]), text(&it["text"]));
    found.map(shown).collect()
}

/// Returns the severity of the only finding of `check`.
pub(crate) fn severity(findings: &[Value], check: &str) -> String {
    match &of_check(findings, check)[..] {
        [(severity, _, _)] => severity.clone(),
        other => panic!("{check}: {other:?} of {findings:?}"),
    }
}

fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn on_disk() -> (tempfile::TempDir, String) {
    // Not /tmp, which may be in memory.
    let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let url = format!("file://{}", directory.path().display());
    (directory, url)
}

#[test]
fn a_directory_on_a_disk_is_ok_and_stays_as_it_is() {
    let scratch = Scratch::new();
    let (directory, url) = on_disk();
    let kept = outcome(&mut scratch.run(&url, &["kept", "--", "true"]));
    assert_eq!(kept.0, 0, "{kept:?}");
    let before = names_in(directory.path());
    let (status, found) = findings(&scratch, &url);
    assert_eq!(status, 0, "{found:?}");
    for check in [
        "directory",
        "file system",
        "permissions",
        "reach",
        "space",
        "inotify",
        "acquire and release",
    ] {
        assert_eq!(severity(&found, check), "ok", "{check}");
    }
    assert_eq!(names_in(directory.path()), before);
}

#[test]
fn a_missing_directory_is_missing_afterwards() {
    let scratch = Scratch::new();
    let (directory, _) = on_disk();
    let missing = directory.path().join("locks");
    let (status, found) = findings(&scratch, &format!("file://{}", missing.display()));
    assert_eq!(status, 0, "{found:?}");
    assert!(!missing.exists());
}

#[test]
fn a_directory_in_memory_is_a_warning() {
    let scratch = Scratch::new();
    let directory = tempfile::tempdir_in("/dev/shm").expect("/dev/shm is a tmpfs");
    let (status, found) = findings(&scratch, &format!("file://{}", directory.path().display()));
    assert_eq!(status, 1, "{found:?}");
    let (severity, _, text) = of_check(&found, "file system").remove(0);
    assert_eq!(severity, "warning");
    assert!(text.starts_with("tmpfs: a restart of the host ends all locks"), "{text}");
    assert!(found.iter().any(|finding| finding["remedy"].is_string()));
}

#[test]
fn a_directory_that_others_can_change_is_a_failure() {
    let scratch = Scratch::new();
    let (directory, url) = on_disk();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let (status, found) = findings(&scratch, &url);
    assert_eq!(status, 69);
    let (severity, _, text) = of_check(&found, "permissions").remove(0);
    assert_eq!(severity, "failure");
    assert!(text.contains("chmod go-w"), "{text}");
}

/// Runs `mount` in a mount namespace. Returns the output of `lockctl doctor` on `$DIR` there.
#[cfg(feature = "__tools")]
fn behind(mount: &str, prefix: &[&str]) -> (i32, String) {
    let scratch = Scratch::new();
    let (directory, url) = on_disk();
    let mut command = std::process::Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-e", "-c"]);
    command.arg(format!("{mount}\nexec \"$@\"")).arg("sh").args(prefix);
    command.arg(env!("CARGO_BIN_EXE_lockctl")).args(["doctor", &url]);
    command.env("DIR", directory.path()).env_remove("LOCK_BACKEND").current_dir(scratch.path(""));
    let (status, stdout, stderr) = outcome(&mut command);
    (status, stdout + &stderr)
}

#[cfg(feature = "__tools")]
#[test]
fn a_read_only_directory_is_a_failure() {
    let (status, shown) = behind("mount -t tmpfs -o ro,mode=700 none \"$DIR\"", &[]);
    assert_eq!(status, 69, "{shown}");
    assert!(shown.contains("failure  permissions: "), "{shown}");
    assert!(shown.contains("read-only"), "{shown}");
}

#[cfg(feature = "__tools")]
#[test]
fn a_full_directory_is_a_failure() {
    let fill = "mount -t tmpfs -o size=4k,nr_inodes=1,mode=700 none \"$DIR\"";
    let (status, shown) = behind(fill, &[]);
    assert_eq!(status, 69, "{shown}");
    assert!(shown.contains("failure  space: "), "{shown}");
}

#[cfg(feature = "__tools")]
#[test]
fn inotify_instances_that_are_used_up_are_a_warning() {
    // Not /proc/sys/fs/inotify, which holds for the whole machine. This is the limit of the new
    // user namespace alone.
    let none = "echo 0 >/proc/sys/user/max_inotify_instances";
    let (status, shown) = behind(none, &[]);
    assert_eq!(status, 1, "{shown}");
    assert!(shown.contains("warning  inotify: no instance can be had"), "{shown}");
    assert!(shown.contains("remedy: sysctl fs.inotify"), "{shown}");
}

#[test]
fn the_text_is_readable_in_80_columns() {
    let scratch = Scratch::new();
    let (_directory, url) = on_disk();
    for arguments in [&["doctor", &url][..], &["--backend", &url, "doctor"]] {
        let (status, shown, stderr) = outcome(&mut scratch.lockctl(arguments));
        assert_eq!((status, stderr.as_str()), (0, ""), "{shown}");
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        assert!(shown.contains("ok       reach: the processes of user "), "{shown}");
    }
}

#[test]
fn the_memory_of_lockctl_is_refused() {
    let scratch = Scratch::new();
    let (status, stdout, stderr) = outcome(&mut scratch.lockctl(&["doctor", "MEMORY:"]));
    assert_eq!((status, stdout.as_str()), (64, ""));
    assert!(stderr.contains("end with the process that acquired them"), "{stderr}");
}

#[cfg(feature = "redis")]
#[test]
fn a_server_that_does_not_answer_is_a_failure_without_credentials() {
    let scratch = Scratch::new();
    let (status, found) = findings(&scratch, "redis://user:hunter2@127.0.0.1:1");
    assert_eq!(status, 69);
    assert_eq!(severity(&found, "connection"), "failure");
    assert!(!format!("{found:?}").contains("hunter2"));
}

#[cfg(feature = "redis")]
#[test]
fn no_key_is_left_on_a_redis() {
    use test_servers::{Redis, RedisOptions};

    let (scratch, server) = (Scratch::new(), Redis::start(RedisOptions::new()));
    server.command(&["SET", "kept", "1"]);
    let (_, found) = findings(&scratch, &server.url());
    assert_eq!(severity(&found, "acquire and release"), "ok", "{found:?}");
    assert!(of_check(&found, "residue").is_empty(), "{found:?}");
    assert_eq!(server.command(&["KEYS", "*"]).text().trim(), "kept");
}

/// Far from the server, most of the time is spent with a lock.
#[cfg(feature = "redis")]
#[tokio::test]
async fn a_signal_leaves_no_key_on_a_redis() {
    use std::os::unix::process::ExitStatusExt as _;
    use std::time::Duration;

    use lock_conformance::proxy::{Fault, Proxy};
    use nix::sys::signal::Signal;
    use test_servers::{Redis, RedisOptions};

    use crate::support::{Running, until};

    let (scratch, server) = (Scratch::new(), Redis::start(RedisOptions::new()));
    let proxy = Proxy::start(server.addr()).unwrap();
    proxy.set(Fault::delay(Duration::from_millis(15)));
    let url = format!("redis://{}", proxy.addr());
    let doctor = Running::start(&mut scratch.lockctl(&["doctor", &url]));
    let keys = || server.command(&["KEYS", "lockctl-doctor*"]).text().trim().to_owned();
    until("a lock is measured", || !keys().is_empty());
    doctor.signal(Signal::SIGTERM);
    let (status, _) = doctor.end();
    assert_eq!(status.signal(), Some(Signal::SIGTERM as i32));
    assert_eq!(keys(), "");
}

#[cfg(all(feature = "quorum", feature = "redis"))]
mod quorum {
    use test_servers::{Redis, RedisOptions};

    use super::*;

    struct Nodes(Vec<Redis>);

    impl Nodes {
        fn start(size: usize) -> Self {
            Self((0..size).map(|_| Redis::start(RedisOptions::new())).collect())
        }

        /// Returns the URL of a quorum of these servers, by their numbers.
        fn url(&self, members: &[usize], options: &str) -> String {
            let members: Vec<_> =
                members.iter().map(|&nth| format!("member={}", self.0[nth].url())).collect();
            format!("quorum:?{}&{options}", members.join("&"))
        }
    }

    #[test]
    fn two_members_that_are_one_server_are_a_failure() {
        let (scratch, nodes) = (Scratch::new(), Nodes::start(2));
        let (status, found) = findings(&scratch, &nodes.url(&[0, 1, 0], "restarts=remember"));
        assert_eq!(status, 69);
        let text = format!("it is the same server as member 1 (redis://{})", nodes.0[0].addr());
        let server = format!("member 3 (redis://{})", nodes.0[0].addr());
        let found = of_check(&found, "independence");
        assert!(found.contains(&("failure".to_owned(), server, text)), "{found:?}");
    }

    #[test]
    fn a_dead_member_is_a_warning_and_a_dead_majority_a_failure() {
        let (scratch, nodes) = (Scratch::new(), Nodes::start(3));
        let url = nodes.url(&[0, 1, 2], "restarts=remember");
        nodes.0[2].kill();
        let (status, found) = findings(&scratch, &url);
        assert_eq!((status, severity(&found, "majority")), (1, "ok".to_owned()), "{found:?}");
        let of_dead = |found: &[Value]| {
            let mut connections = of_check(found, "connection");
            connections.retain(|(severity, server, _)| {
                severity != "ok" && server.starts_with("member 3 ")
            });
            connections.into_iter().map(|(severity, ..)| severity).collect::<Vec<_>>()
        };
        assert_eq!(of_dead(&found), ["warning"], "{found:?}");
        assert_eq!(severity(&found, "acquire and release"), "ok");

        nodes.0[1].kill();
        let (status, found) = findings(&scratch, &url);
        assert_eq!((status, severity(&found, "majority")), (69, "failure".to_owned()), "{found:?}");
        assert_eq!(of_dead(&found), ["failure"], "{found:?}");
        assert!(of_check(&found, "acquire and release").is_empty(), "{found:?}");
    }

    #[test]
    fn fresh_members_are_warnings_with_the_time_until_they_count() {
        let (scratch, nodes) = (Scratch::new(), Nodes::start(3));
        let (status, found) = findings(&scratch, &nodes.url(&[0, 1, 2], "max_ttl=1h"));
        assert_eq!(status, 69, "{found:?}");
        let (severity, _, text) = of_check(&found, "majority").remove(0);
        assert_eq!(severity, "failure");
        assert!(text.starts_with("0 of 3 members count, and 2 are needed"), "{text}");
        let fresh = of_check(&found, "restart");
        assert_eq!(fresh.len(), 3, "{fresh:?}");
        assert!(
            fresh
                .iter()
                .all(|(severity, _, text)| severity == "warning"
                    && text.contains("it is counted in 36")),
            "{fresh:?}"
        );
    }

    #[test]
    fn an_even_number_of_members_is_a_failure() {
        let (scratch, nodes) = (Scratch::new(), Nodes::start(2));
        let (status, found) = findings(&scratch, &nodes.url(&[0, 1], "restarts=remember"));
        assert_eq!((status, severity(&found, "members")), (69, "failure".to_owned()), "{found:?}");
    }
}
