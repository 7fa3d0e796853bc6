//! The origin of figures: one line of JSON.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use super::backends::run_name;
use super::bench::Bench;
use super::cpu;
use super::error::Result;
use super::others::Found;

pub(crate) fn json(bench: &Bench<'_>) -> Result<Value> {
    let server = bench.target.server.as_ref().map(|server| server.version()).transpose()?;
    let kernel = rustix::system::uname();
    let pins = bench.pins.as_ref();
    Ok(json!({
        "environment": {
            "lock-bench": env!("CARGO_PKG_VERSION"),
            "profile": if cfg!(debug_assertions) { "dev" } else { "release" },
            "rustc": rustc(),
            "backend": run_name(bench.backend, bench.server().map_or(0, |server| server.addrs().len())),
            "server": server,
            "others": others(&bench.others),
            "peers": peers(bench),
            "server_is_ours": bench.server().map(|server| !server.pids().is_empty()),
            "kernel": kernel.release().to_string_lossy(),
            "machine": kernel.machine().to_string_lossy(),
            "cpu": processor(),
            "cpus": cpu::count(),
            "load": load(),
            "server_cpus": pins.map(|pins| &pins.server),
            "worker_cpus": pins.map(|pins| &pins.workers),
            "worker_threads": bench.settings.threads,
            "rounds": bench.settings.rounds,
            "seconds": bench.settings.seconds,
            "delay_ms": bench.settings.delay,
            "foreign_percent": bench.settings.foreign,
            "exact": bench.settings.exact,
            "seed": bench.seed,
        }
    }))
}

/// Returns the other libraries that are neither ours nor a floor.
fn peers<'a>(bench: &'a Bench<'_>) -> Vec<&'a str> {
    let by_hand = bench.settings.peer.iter().map(|peer| &*peer.name);
    by_hand.chain(bench.backend.alternatives.iter().copied()).collect()
}

fn others(found: &[Found]) -> BTreeMap<&str, String> {
    found
        .iter()
        .map(|(name, version)| match version {
            Ok(version) => (*name, version.clone()),
            Err(command) => (*name, format!("not installed, so not measured: {command}")),
        })
        .collect()
}

/// Returns the version of the installed compiler, most likely the one that was used.
fn rustc() -> Option<String> {
    let output = Command::new("rustc").arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn processor() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Returns the number of runnable processes, averaged over a minute.
fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}
