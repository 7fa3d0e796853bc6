//! Lock clients of other languages beside ours: each check, both ways, for each client.
//!
//! By default the clients that Debian has, with seconds of load. `FLEET=all` runs all that
//! `testing/fleet/setup` has installed, and names the others. `FLEET_SECONDS` is the time of a load
//! run. `FLEET_RECORD=FILE` stores the results.

mod checks;
mod load;
mod scene;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use libtest_mimic::{Arguments, Trial};
use lock_fleet::{CLIENTS, Client, Record, Renewal, Seen, Side};

use checks::CHECKS;
use scene::Scene;

/// Most trials wait most of the time.
const AT_ONCE: usize = 12;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let all = std::env::var("FLEET").is_ok_and(|which| which == "all");
    let results = Arc::new(Mutex::new(Vec::new()));
    let mut trials = vec![Trial::test("sabotage::another_prefix_is_noticed", move || {
        checks::another_prefix_is_noticed(&target()).map_err(Into::into)
    })];
    for client in CLIENTS.iter().filter(|client| all || client.is_debians()) {
        match client.version(&target()) {
            Ok(version) => trials.extend(trials_of(client, &version, &results)),
            Err(how) if client.is_debians() => panic!("{} is missing: {how}", client.name),
            Err(how) => {
                println!("not run: {}: {how}", client.name);
                results.lock().expect("no trial has begun").push(Seen {
                    client: client.name.into(),
                    version: None,
                    check: String::new(),
                    holder: None,
                    seen: how,
                });
            }
        }
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Some(path) = std::env::var_os("FLEET_RECORD").filter(|_| !arguments.list) {
        let results = std::mem::take(&mut *results.lock().unwrap_or_else(PoisonError::into_inner));
        store(Path::new(&path), results);
    }
    conclusion.exit_code()
}

fn store(path: &Path, results: Vec<Seen>) {
    let mut record = Record::load(path).unwrap_or_else(|error| panic!("{error}"));
    results.into_iter().for_each(|seen| record.add(seen));
    record.store(path).unwrap_or_else(|error| panic!("{error}"));
}

/// Returns the target directory.
fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is below the target").to_owned()
}

fn trials_of(
    client: &'static Client,
    version: &str,
    results: &Arc<Mutex<Vec<Seen>>>,
) -> Vec<Trial> {
    let mut trials = Vec::new();
    for check in CHECKS {
        for holder in [Side::Ours, Side::Theirs] {
            let renews = holder == Side::Ours || client.renewal != Renewal::None;
            if !check.applies_to(client, holder) || (check.renews && !renews) {
                continue;
            }
            let word = if holder == Side::Ours { "ours_first" } else { "theirs_first" };
            let (version, results) = (version.to_owned(), Arc::clone(results));
            let name = format!("{}::{}::{word}", client.name, check.name);
            trials.push(Trial::test(name, move || {
                let scene = Scene::start(client, &target(), client.prefix);
                let seen = scene.run(check.run, holder)?;
                println!("{} {} {word}: {seen}", client.name, check.name);
                let seen = Seen {
                    client: client.name.into(),
                    version: Some(version),
                    check: check.name.into(),
                    holder: Some(holder),
                    seen,
                };
                results.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
                Ok(())
            }));
        }
    }
    trials
}
