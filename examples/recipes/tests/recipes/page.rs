//! docs/recipes.md: its commands run, and its code is that of the programs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

const PAGE: &str = include_str!("../../../../docs/recipes.md");

/// Returns the code blocks of a language.
fn blocks(language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    PAGE.split(fence.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// Returns the path of the lockctl to test, from `LOCKCTL`.
fn lockctl() -> PathBuf {
    let path = std::env::var_os("LOCKCTL").expect("LOCKCTL is the path of lockctl: see ./test");
    fs::canonicalize(path).expect("LOCKCTL is a file")
}

/// Makes a directory with a `bin` that stands for /usr/local/bin, and scripts that write to `log`.
fn host() -> TempDir {
    let host = tempfile::tempdir().unwrap();
    let bin = host.path().join("bin");
    fs::create_dir(&bin).unwrap();
    symlink(lockctl(), bin.join("lockctl")).unwrap();
    for script in ["report.sh", "nightly.sh", "bin/report.sh", "job.sh"] {
        let log = host.path().join("log");
        let text = format!("#!/bin/sh\necho run $LOCK_FENCING_TOKEN >>'{}'\n", log.display());
        let path = host.path().join(script);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    host
}

/// Returns how often a script of the host has run.
fn runs(host: &Path) -> usize {
    fs::read_to_string(host.join("log")).map_or(0, |log| log.lines().count())
}

/// Runs the last line of a crontab as cron does: by a shell, with its lines of assignments and
/// little else in the environment. `locks` stands in for the backend.
fn cron(crontab: &str, host: &Path, locks: &str) -> Output {
    let mut lines: Vec<&str> = crontab.lines().collect();
    let command = lines.pop().unwrap().splitn(6, ' ').nth(5).unwrap();
    let mut cron = Command::new("/bin/sh");
    cron.args(["-c", command]).current_dir(host).env_clear().env("HOME", host);
    for (name, value) in lines.iter().filter_map(|line| line.split_once('=')) {
        cron.env(name, value.replace("/usr/local/bin", host.join("bin").to_str().unwrap()));
    }
    cron.env("LOCK_BACKEND", locks).output().unwrap()
}

/// Holds a lock until it is killed and waited for.
fn hold(locks: &str, name: &str) -> Child {
    let mut holder = Command::new(lockctl());
    holder.args(["--backend", locks, "run", name, "--", "sh", "-c", "echo held; exec sleep 60"]);
    let mut holder = holder.stdout(Stdio::piped()).spawn().unwrap();
    let mut held = [0; 5];
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut held).unwrap();
    holder
}

fn end(mut holder: Child) {
    Command::new("kill").arg(holder.id().to_string()).status().unwrap();
    holder.wait().unwrap();
}

#[test]
fn a_crontab_runs_its_job_once_at_a_time() {
    for (crontab, name) in blocks("crontab").into_iter().zip(["report", "nightly"]) {
        let host = host();
        let locks = format!("file://{}/locks", host.path().display());
        let holder = hold(&locks, name);
        let refused = cron(crontab, host.path(), &locks);
        assert_eq!(refused.status.code(), Some(75), "{refused:?}");
        assert_eq!(refused.stderr.is_empty(), crontab.contains("--quiet"), "it names the holder");
        assert_eq!(runs(host.path()), 0);
        end(holder);
        if name == "report" {
            assert!(cron(crontab, host.path(), &locks).status.success());
            assert_eq!(runs(host.path()), 1);
        } else {
            // It keeps the lock for five minutes. The parts of the line that matter are there.
            assert!(crontab.contains("--min-hold 5m") && crontab.contains("LOCK_BACKEND=redis://"));
        }
    }
}

#[test]
fn a_unit_runs_its_job_once_at_a_time() {
    let [unit] = blocks("ini")[..] else { panic!("one unit") };
    let host = host();
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let start = start.replace("/usr/local/bin", host.path().join("bin").to_str().unwrap());
    let start = start.replace("/run/reports", host.path().join("locks").to_str().unwrap());
    let run = || {
        let words: Vec<&str> = start.split(' ').collect();
        Command::new(words[0]).args(&words[1..]).env_clear().status().unwrap().code()
    };
    let locks = format!("file://{}/locks", host.path().display());
    let holder = hold(&locks, "report");
    let success: i32 = unit
        .lines()
        .find_map(|line| line.strip_prefix("SuccessExitStatus="))
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!((run(), runs(host.path())), (Some(success), 0));
    end(holder);
    assert_eq!((run(), runs(host.path())), (Some(0), 1));
    let verify = Command::new("systemd-analyze").args(["--version"]).output();
    if verify.is_ok_and(|output| output.status.success()) {
        let file = host.path().join("report.service");
        fs::write(&file, unit.replace("/usr/local/bin", host.path().join("bin").to_str().unwrap()))
            .unwrap();
        let output = Command::new("systemd-analyze").arg("verify").arg(&file).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

/// Runs commands in the mount and pid namespaces of a container, with the volume at another path.
#[test]
fn containers_share_a_volume() {
    let [line] = blocks("sh")[..] else { panic!("one command") };
    let (volume, command) = line.trim().split_once(" app ").unwrap();
    let (outside, inside) = volume.rsplit(' ').next().unwrap().split_once(':').unwrap();
    assert_eq!((outside, inside), ("/var/lib/app-locks", "/locks"));
    let host = host();
    let path = |name: &str| host.path().join(name);
    fs::create_dir(path("volume")).unwrap();
    fs::set_permissions(path("volume"), fs::Permissions::from_mode(0o700)).unwrap();
    let container = |number: u8, command: &str| {
        let mounted = path(&format!("container{number}"));
        fs::create_dir_all(&mounted).unwrap();
        let command = command
            .replace("file:///locks", &format!("file://{}", mounted.display()))
            .replace("lockctl", lockctl().to_str().unwrap());
        let script = format!(
            "mount --bind '{}' '{}' && exec {command}",
            path("volume").display(),
            mounted.display()
        );
        let mut unshare = Command::new("unshare");
        unshare.args(["--map-root-user", "--mount", "--pid", "--fork", "--kill-child"]);
        unshare.args(["sh", "-c", &script]).current_dir(host.path());
        unshare
    };
    let holding = command.replace("./job.sh", "sh -c 'echo held; exec sleep 60'");
    let mut holder = container(1, &holding).stdout(Stdio::piped()).spawn().unwrap();
    let mut held = [0; 5];
    std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut held).unwrap();
    let impatient = command.replace(" run ", " run --no-wait ");
    assert_eq!(container(2, &impatient).status().unwrap().code(), Some(75));
    holder.kill().unwrap();
    holder.wait().unwrap();
    // The kernel ends the processes of the first namespace, and with them their lock.
    assert!(container(2, command).status().unwrap().success());
    assert_eq!(runs(host.path()), 1);
}

#[test]
fn the_code_on_the_page_is_that_of_the_programs() {
    let programs = [
        include_str!("../../src/bin/service.rs"),
        include_str!("../../src/bin/batch.rs"),
        include_str!("../../src/bin/tool/tests.rs"),
        include_str!("../../../../lock-redis/examples/own_redis_client.rs"),
        include_str!("../../../../lock-redis/examples/redis_connector.rs"),
    ];
    let code = blocks("rust");
    assert!(code.len() >= 7);
    for block in code {
        assert!(programs.iter().any(|program| program.contains(block)), "no program has\n{block}");
    }
}
