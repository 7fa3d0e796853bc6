//! CPU time, memory and processors, as the kernel counts them.

use std::fs;

use lock_bench_worker::clock::now;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Returns the CPU time of all threads of a process in nanoseconds, without its children.
///
/// Returns zero once it has ended. The time of ended threads is known to two ticks, which are 20
/// ms.
pub(crate) fn of_process(pid: u32) -> u64 {
    of_threads(pid).max(ticks(pid, 11))
}

/// Returns the CPU time of living threads, to the nanosecond.
fn of_threads(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        .sum()
}

/// Returns [`of_process`], with the children that it has started and reaped. Those are counted in
/// ticks.
pub(crate) fn with_children(pid: u32) -> u64 {
    of_process(pid) + ticks(pid, 13)
}

/// Returns the sum of two fields of `stat` that count ticks, user and system, in nanoseconds; see
/// proc(5).
fn ticks(pid: u32, first: usize) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The program's name is in parentheses, and may contain anything.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let both = fields.split_whitespace().skip(first).take(2);
    both.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * tick()
}

fn tick() -> u64 {
    1_000_000_000 / rustix::param::clock_ticks_per_second()
}

/// Returns the resident memory of a process in bytes.
pub(crate) fn memory_of(pid: u32) -> u64 {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

/// Returns the processors that this process may use.
pub(crate) fn allowed() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect()
}

/// Returns the number of all processors, with those that this process may not use.
pub(crate) fn count() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let is_one = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
    stat.lines().filter(is_one).count().max(1) as u64
}

/// Pins a process to some processors, with the threads that it starts from now on.
pub(crate) fn pin(pid: u32, cpus: &[usize]) {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu));
    // It fails if the process has ended, which the next call reports.
    let pid = Pid::from_raw(pid.cast_signed());
    if let Some(pid) = pid {
        let _ = sched_setaffinity(Some(pid), &set);
    }
}

/// The load of other processes on the machine.
pub(crate) struct ForeignLoad {
    start: u64,
    busy: u64,
}

impl ForeignLoad {
    pub(crate) fn start() -> Self {
        Self { start: now(), busy: busy() }
    }

    /// Returns the share of all processors that other processes have used since then, where `ours`
    /// is our own CPU time in nanoseconds.
    pub(crate) fn share(&self, ours: u64) -> f64 {
        let wall = (now() - self.start).max(1) * count();
        busy().saturating_sub(self.busy).saturating_sub(ours) as f64 / wall as f64
    }
}

/// Returns how long all processors together were not idle, with stolen time, in nanoseconds.
fn busy() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let first_line = stat.lines().next().unwrap_or_default().split_whitespace();
    let ticks: Vec<u64> = first_line.skip(1).filter_map(|ticks| ticks.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal
    let busy: u64 = [0, 1, 2, 5, 6, 7].iter().filter_map(|&i| ticks.get(i)).sum();
    busy * tick()
}
