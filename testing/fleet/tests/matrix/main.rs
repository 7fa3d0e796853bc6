//! Lock clients of other languages beside ours: each check, both ways, for each client.
//!
//! By default the clients that Debian has, with seconds of load. `FLEET=all` also runs those that
//! `testing/fleet/setup` installs. A missing client is a failure. `FLEET_SECONDS` is the time of a
//! load run. `FLEET_RECORD=FILE` stores the results; a relative path begins at the root of the
//! workspace.

mod checks;
mod load;
mod promises;
mod scene;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use libtest_mimic::{Arguments, Trial};
use lock_fleet::{
    CLIENTS, Client, PROMISES, Promise, Record, Renewal, STOPPED_WAITERS, Seen, Side,
};

use checks::{CHECKS, CheckOf};
use scene::Scene;

/// Most trials wait most of the time.
const AT_ONCE: usize = 8;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let all = std::env::var("FLEET").is_ok_and(|which| which == "all");
    let results = Results::new(std::env::var_os("FLEET_RECORD").filter(|_| !arguments.list));
    let mut trials = vec![Trial::test("sabotage::another_prefix_is_noticed", move || {
        checks::another_prefix_is_noticed(&target()).map_err(Into::into)
    })];
    // A version costs the start of a process.
    let filter = arguments.filter.clone().filter(|filter| filter.contains("::"));
    let is_wanted = |client: &&Client| filter.as_ref().is_none_or(|it| it.contains(client.name));
    let clients = CLIENTS.iter().filter(|client| all || client.is_debians());
    for client in clients.filter(is_wanted) {
        match client.version(&target()) {
            Ok(version) => trials.extend(trials_of(client, &version, &results)),
            Err(how) => panic!("{} is missing: run {how}", client.name),
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// The results so far, and the file in which they are stored, if they are.
#[derive(Clone)]
struct Results(Arc<(Option<PathBuf>, Mutex<Record>)>);

impl Results {
    fn new(path: Option<impl Into<PathBuf>>) -> Self {
        // Cargo runs tests in the directory of their crate.
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let path = path.map(|path| root.join(path.into()));
        let record = path.as_deref().map(|path| Record::load(path).expect("it is a record"));
        Self(Arc::new((path, Mutex::new(record.unwrap_or_default()))))
    }

    /// Adds a result, and stores all at once: a later trial may end the program.
    fn add(&self, client: &Client, version: &str, check: &str, holder: Option<Side>, seen: String) {
        let (path, record) = &*self.0;
        let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
        let (client, version, check) = (client.name.into(), version.into(), check.into());
        record.add(Seen { client, version, check, holder, seen });
        if let Some(path) = path {
            record.store(path).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

/// Returns the target directory.
fn target() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is below the target").to_owned()
}

fn trials_of(client: &'static Client, version: &str, results: &Results) -> Vec<Trial> {
    let ways = |check: &'static CheckOf| {
        [Side::Ours, Side::Theirs]
            .into_iter()
            .filter(|&holder| {
                let renews = holder == Side::Ours || client.renewal != Renewal::None;
                check.applies_to(client, holder) && (renews || !check.renews)
            })
            .map(move |holder| (check, holder))
    };
    let checks = CHECKS.iter().flat_map(ways).map(|(check, holder)| {
        let word = if holder == Side::Ours { "ours_first" } else { "theirs_first" };
        let name = format!("{}::{}::{word}", client.name, check.name);
        let (version, results) = (version.to_owned(), results.clone());
        Trial::test(name.clone(), move || {
            let scene = Scene::start(client, &target(), client.prefix);
            let seen = scene.run(check.run, holder)?;
            println!("{name}: {seen}");
            let (seen, stopped) = load::grants_and_stopped(&seen);
            results.add(client, &version, check.name, Some(holder), seen.to_owned());
            // Seen once, it stays known of that version: it does not happen in each run.
            if let Some(stopped) = stopped {
                results.add(client, &version, STOPPED_WAITERS, None, stopped.to_owned());
            }
            Ok(())
        })
    });
    let has_trial = |it: &&Promise| it.client == client.name && it.check == it.seen_by();
    let promises = PROMISES.iter().filter(has_trial);
    checks.chain(promises.map(|promise| trial_of(client, promise, version, results))).collect()
}

/// Returns the trial of a promise that the client breaks. It fails if the promise is kept, so that
/// no row of the page is out of date.
fn trial_of(
    client: &'static Client,
    promise: &'static Promise,
    version: &str,
    results: &Results,
) -> Trial {
    let (version, results) = (version.to_owned(), results.clone());
    let name = format!("{}::{}", client.name, promise.check);
    Trial::test(name.clone(), move || {
        let seen = promises::broken(promise, &target())?;
        println!("{name}: {seen}");
        results.add(client, &version, promise.check, None, seen);
        Ok(())
    })
}
