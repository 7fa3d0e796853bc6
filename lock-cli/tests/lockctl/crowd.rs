//! Many processes that wait for one lock file.
//!
//! `CROWD=2000,5000` sets their sizes.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lock_any::clock::Moment;
use serde_json::Value;

use crate::support::{Running, Scratch, outcome, until};

const USUAL: usize = 100;
/// From the start of the first process to the end of the last one: 2 000 in 20 s, 5 000 in 60 s.
const EACH: Duration = Duration::from_millis(12);
const AT_LEAST: Duration = Duration::from_secs(20);
/// The time for which the cost of waiting is measured.
const WATCHED: Duration = Duration::from_secs(2);

fn sizes() -> Vec<usize> {
    let sizes = std::env::var("CROWD").unwrap_or_else(|_| USUAL.to_string());
    sizes.split(',').map(|size| size.parse().expect("CROWD is a list of numbers")).collect()
}

fn limit(size: usize) -> Duration {
    AT_LEAST.max(EACH * u32::try_from(size).unwrap())
}

/// A set of processes that are killed if a check fails.
struct Crowd(Vec<Child>);

impl Drop for Crowd {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Returns the CPU time of the processes in seconds, in whole ticks of the kernel.
fn cpu(processes: &[Child]) -> f64 {
    let ticks = processes.iter().map(|process| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        let fields = fields.split(' ').skip(11).take(2);
        fields.map(|ticks| ticks.parse::<u32>().unwrap()).sum::<u32>()
    });
    f64::from(ticks.sum::<u32>()) / 100.0
}

/// Returns the private memory that a process has written to, in kilobytes.
fn memory(process: &Child) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", process.id())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Private_Dirty:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn inspect(scratch: &Scratch) -> (i32, String, String) {
    outcome(&mut scratch.lockctl(&["--backend", &scratch.url(), "inspect", "n", "--json"]))
}

fn waiting(scratch: &Scratch) -> Value {
    let seen: Value = serde_json::from_str(&inspect(scratch).1).unwrap();
    seen["waiting"].clone()
}

/// Checks that each of `size` processes runs once, and that waiting costs no CPU time.
fn is_served(size: usize, prefix: &[&str]) {
    let scratch = Scratch::new();
    let job = ["n", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.05; done"];
    let holder = Running::start(&mut scratch.run(&scratch.url(), &job));
    until("the lock is held", || inspect(&scratch).0 == 0);
    let began = Moment::now();
    let passed = || Moment::now().saturating_since(began);
    let ours = scratch.run(&scratch.url(), &["n", "--", "sh", "-c", "echo >>jobs"]);
    let start = || {
        let words: Vec<_> = prefix.iter().map(AsRef::as_ref).chain([ours.get_program()]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).args(ours.get_args()).stdin(Stdio::null());
        command.envs(ours.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command.current_dir(ours.get_current_dir().unwrap_or(Path::new(".")));
        command.spawn().unwrap()
    };
    let mut crowd = Crowd((0..size).map(|_| start()).collect());
    until("all wait", || waiting(&scratch) == size);
    let memory = crowd.0.iter().map(memory).sum::<u64>() / size as u64;
    let before = cpu(&crowd.0);
    let end = Moment::now() + WATCHED;
    until("the CPU time was measured", || end.has_passed());
    let idle = (cpu(&crowd.0) - before) / WATCHED.as_secs_f64();
    let came = passed();
    std::fs::write(scratch.path("go"), "").unwrap();
    for process in &mut crowd.0 {
        assert!(process.wait().unwrap().success());
    }
    let took = passed();
    assert_eq!(holder.code(), 0);
    assert_eq!(scratch.read("jobs").len(), size);
    println!(
        "{size} processes {prefix:?}: all wait after {came:.1?}, all served after {took:.1?}, \
         {memory} kB each, {idle:.3} CPUs while they wait"
    );
    assert!(took <= limit(size) + WATCHED, "{size} were served in {took:?}");
    assert!(idle < 0.3, "{idle} CPUs are busy while {size} processes wait");
}

#[test]
fn a_crowd_is_served_in_time() {
    sizes().into_iter().for_each(|size| is_served(size, &[]));
}

/// In a user namespace, the crowd has a limit of no instances.
#[cfg(feature = "__tools")]
#[test]
fn a_crowd_without_inotify_is_served_in_time() {
    let script = "echo 0 >/proc/sys/user/max_inotify_instances && exec \"$@\"";
    let prefix = ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh"];
    sizes().into_iter().for_each(|size| is_served(size, &prefix));
}
