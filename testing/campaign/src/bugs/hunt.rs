//! Plants bugs one at a time, and records whether each is detected.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use clap::Args;
use lock_conformance::{ClockMode, Harness, laws};
use lock_core::Memory;
use lock_history::Rule;

use super::finding::CAMPAIGN;
use super::{ALL, Bug, Detector, Finding, PlainHarness, saboteur};
use crate::outcome::{Outcome, Settings};
use crate::report;
use crate::run::run;
use crate::sites::BackendSpec;

/// The options of a hunt for planted bugs.
#[derive(Args, Debug)]
pub(crate) struct Hunt {
    /// Bugs to plant, all by default
    #[arg(value_name = "BUG")]
    bugs: Vec<String>,
    /// Detect the bugs by the campaign on this backend, in place of their own checks
    #[arg(long, value_name = "BACKEND")]
    on: Option<String>,
    /// First seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Faults in each run
    #[arg(long, default_value_t = Settings::default().faults)]
    faults: u32,
    /// Grants between two faults (with few grants, hardly a call is undisturbed)
    #[arg(long, default_value_t = 60)]
    grants: u64,
    /// Seeds to try before a bug counts as not detected
    #[arg(long, default_value_t = 5)]
    seeds: u64,
    /// Directory of the findings (bugs with a finding by the current verdict are left out)
    #[arg(long, value_name = "DIR", default_value = "campaign")]
    out: PathBuf,
    /// Repeat current findings as well, since they are of older code
    #[arg(long)]
    anew: bool,
    /// Description of the tested code for the findings, such as its commit
    #[arg(long)]
    code: Option<String>,
}

/// Plants the bugs of `hunt`. Returns true if all were detected.
pub(crate) fn hunt(
    hunt: &Hunt,
    find: impl Fn(&str) -> io::Result<BackendSpec>,
    runtime: impl Fn() -> io::Result<tokio::runtime::Runtime>,
) -> io::Result<bool> {
    let (mut findings, mut clean) = (Vec::new(), CleanSeeds::default());
    let mut mutants = Vec::new();
    for bug in hunt.bugs()? {
        let stored = Finding::find(&hunt.out, bug.name)?;
        if let Some(finding) = stored.filter(|stored| !hunt.anew && stored.is_current()) {
            println!("{}: already stored", bug.name);
            findings.push(finding);
            continue;
        }
        let finding = match hunt.on.as_deref().map_or(bug.seen_by, |_| Detector::Campaign("")) {
            Detector::Campaign(backend) => {
                let target = find(hunt.on.as_deref().unwrap_or(backend))?;
                detect_by_campaign(hunt, bug, &target, &mut clean, &runtime)?
            }
            Detector::Law(number) => detect_by_law(bug, number).map_err(io::Error::other)?,
            Detector::Network(number) => detect_by_network(bug, number)?,
            Detector::Mutant(name) => {
                mutants.push((name, bug));
                continue;
            }
        };
        store(hunt, finding, &mut findings)?;
    }
    if !mutants.is_empty() {
        detect_by_mutants(&mutants, |finding| store(hunt, finding, &mut findings))?;
    }
    let seen = findings.iter().filter(|finding| finding.seen.is_some()).count();
    println!("{seen} of {} bugs are detected", findings.len());
    Ok(seen == findings.len())
}

impl Hunt {
    fn bugs(&self) -> io::Result<Vec<&'static Bug>> {
        if self.bugs.is_empty() {
            return Ok(ALL.iter().collect());
        }
        let find = |name: &String| {
            let found = ALL.iter().find(|bug| bug.name == name);
            found.ok_or_else(|| io::Error::other(format!("no bug {name:?} is known")))
        };
        self.bugs.iter().map(find).collect()
    }
}

fn store(hunt: &Hunt, finding: Finding, findings: &mut Vec<Finding>) -> io::Result<()> {
    let finding = Finding { code: hunt.code.clone(), ..finding };
    let seen = finding.seen.as_deref().unwrap_or("NOT DETECTED");
    println!("{}, {}: {seen}", finding.bug, finding.seen_by);
    finding.store(&hunt.out)?;
    findings.push(finding);
    Ok(())
}

fn detect_by_campaign(
    hunt: &Hunt,
    bug: &Bug,
    target: &BackendSpec,
    clean: &mut CleanSeeds,
    runtime: impl Fn() -> io::Result<tokio::runtime::Runtime>,
) -> io::Result<Finding> {
    saboteur(bug.name).map_err(io::Error::other)?;
    let settings = Settings { faults: hunt.faults, grants: hunt.grants, ..Settings::default() };
    let with_bug = Settings { bug: Some(bug.name.to_owned()), ..settings.clone() };
    let (mut seen, mut command) = (None, String::new());
    for seed in hunt.seed..hunt.seed + hunt.seeds {
        let outcome = runtime()?.block_on(run(target, seed, &with_bug))?.outcome;
        command = outcome.command();
        let run_without_bug = || {
            println!("{} seed {seed} without a bug", target.name);
            Ok(runtime()?.block_on(run(target, seed, &settings))?.outcome.is_clean())
        };
        if bug.shows_in(&outcome) && clean.is_clean(target.name, seed, run_without_bug)? {
            seen = report::caught_by(&outcome).map(|by| format!("{by} (seed {seed})"));
            break;
        }
    }
    Ok(Finding::new(bug, format!("{CAMPAIGN}, {}", target.name), seen, command))
}

impl Bug {
    /// Returns true if the outcome shows the bug, given that the same seed is clean without it.
    fn shows_in(&self, outcome: &Outcome) -> bool {
        let is_broken = |rule: &Rule| outcome.broken.contains_key(&format!("{rule:?}"));
        self.rules.iter().any(is_broken)
    }
}

/// The seeds that are clean without a bug, by backend. A violation in another seed proves no bug.
/// Each seed is run once.
#[derive(Default)]
struct CleanSeeds(HashMap<(String, u64), bool>);

impl CleanSeeds {
    fn is_clean(
        &mut self,
        backend: &str,
        seed: u64,
        run: impl FnOnce() -> io::Result<bool>,
    ) -> io::Result<bool> {
        match self.0.entry((backend.to_owned(), seed)) {
            Entry::Occupied(known) => Ok(*known.get()),
            Entry::Vacant(new) => Ok(*new.insert(run()?)),
        }
    }
}

fn detect_by_law(bug: &Bug, number: &str) -> Result<Finding, String> {
    let law = laws::by_number(number).ok_or_else(|| format!("there is no law {number}"))?;
    let make = || {
        let backend = Arc::new(Memory::new().with_loss_push());
        Box::new(PlainHarness { backend, clock_mode: ClockMode::Paused }) as Box<dyn Harness>
    };
    let seen = lock_conformance::catch(law, saboteur(bug.name)?, &make).ok();
    let happened = seen.map(|violation| {
        let text = violation.to_string();
        let line = text.lines().find_map(|line| line.trim().strip_prefix("happened: "));
        line.unwrap_or(&text).to_owned()
    });
    let trial = format!("law_{}_catches_{}", number.replace('.', "_"), bug.name);
    let command = format!("cargo test -p lock-conformance --test sabotage {trial}");
    Ok(Finding::new(bug, format!("law {number}, {}", law.name), happened, command))
}

/// Runs the test of Redis that passes if the law catches the bug.
fn detect_by_network(bug: &Bug, number: &str) -> io::Result<Finding> {
    let law = laws::by_number(number);
    let law = law.ok_or_else(|| io::Error::other(format!("there is no law {number}")))?;
    let trial = format!("redis::law_{}_catches_{}", number.replace('.', "_"), bug.name);
    let words = ["test", "-p", "lock-redis", "--test", "sabotage", "--", "--exact", &trial];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let done = Command::new("cargo").args(words).current_dir(root).output()?;
    let output = String::from_utf8_lossy(&done.stdout);
    let is_seen = done.status.success() && output.contains("1 passed");
    let seen = is_seen.then(|| format!("{trial} passes"));
    let by = format!("law {number} on Redis, {}", law.name);
    Ok(Finding::new(bug, by, seen, format!("cargo {}", words.join(" "))))
}

/// Runs `scripts/mutants`, which prints a line for each mutant: its name, the seconds, and the test
/// that caught it.
fn detect_by_mutants(
    mutants: &[(&str, &Bug)],
    mut store: impl FnMut(Finding) -> io::Result<()>,
) -> io::Result<()> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/mutants");
    let names = mutants.iter().map(|(name, _)| name);
    let mut running = Command::new(script).args(names).stdout(Stdio::piped()).spawn()?;
    let output = running.stdout.take().ok_or_else(|| io::Error::other("it has no output"))?;
    let (mut missing, mut is_any_unseen) = (mutants.len(), false);
    for line in BufReader::new(output).lines() {
        let line = line?;
        let Some((name, caught_by)) = row(&line) else { continue };
        let Some((name, bug)) = mutants.iter().find(|(known, _)| *known == name) else {
            continue;
        };
        let seen = caught_by.map(|by| format!("{by} fails"));
        is_any_unseen |= seen.is_none();
        store(Finding::new(bug, "a mutant".to_owned(), seen, format!("scripts/mutants {name}")))?;
        missing -= 1;
    }
    let status = running.wait()?;
    match missing {
        0 if status.success() || is_any_unseen => Ok(()),
        0 => Err(io::Error::other(format!("scripts/mutants ends with {status}"))),
        _ => Err(io::Error::other(format!("scripts/mutants reports nothing of {missing} bugs"))),
    }
}

/// Returns the name of the mutant in a row of the table of `scripts/mutants`, and the test that
/// caught it, if one did.
fn row(line: &str) -> Option<(&str, Option<String>)> {
    let mut words = line.split_whitespace();
    let (name, _seconds) = (words.next()?, words.next()?);
    let by = words.collect::<Vec<_>>().join(" ");
    Some((name, (!by.starts_with("NOT CAUGHT")).then_some(by)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the outcome of a clean run.
    fn clean() -> Outcome {
        let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/campaign");
        let all = Outcome::load_all(&results).expect("results can be read");
        all.into_iter().find(Outcome::is_clean).expect("one is clean")
    }

    #[test]
    fn mutant_is_seen_only_if_a_test_caught_it() {
        let by = Some("refusals::a_refused_release_is_repeated".to_owned());
        let line = "lock-redis/barges      12.3  refusals::a_refused_release_is_repeated";
        assert_eq!(row(line), Some(("lock-redis/barges", by)));
        let line = "lock-redis/barges      12.3  NOT CAUGHT: its command passes";
        assert_eq!(row(line), Some(("lock-redis/barges", None)));
    }

    #[test]
    fn bug_shows_only_as_violation_of_its_rules() {
        let with = |rule: &str| {
            let mut outcome = clean();
            outcome.broken.insert(rule.to_owned(), 1);
            outcome
        };
        let failed = Outcome { failures: vec!["minimum traffic".to_owned()], ..clean() };
        let named = |name: &str| ALL.iter().find(|bug| bug.name == name).expect("it exists");
        let (tokens, expiry) = (named("RepeatsTokens"), named("ExpiresEarly"));
        for (outcome, tokens_show, expiry_shows) in [
            (clean(), false, false),
            (with("K4"), true, false),
            (with("K2"), false, true),
            (with("K5"), false, false),
            (failed, false, false),
        ] {
            let shows = (tokens.shows_in(&outcome), expiry.shows_in(&outcome));
            assert_eq!(shows, (tokens_show, expiry_shows), "{:?}", outcome.broken);
        }
    }

    #[test]
    fn every_mutant_exists() {
        let mutants = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../mutants");
        for bug in ALL {
            if let Detector::Mutant(name) = bug.seen_by {
                assert!(mutants.join(format!("{name}.patch")).is_file(), "{}: {name}", bug.name);
            }
        }
    }

    #[test]
    fn seed_without_bug_runs_once_on_each_backend() {
        let (mut clean, mut runs) = (CleanSeeds::default(), 0);
        for (backend, seed, is_clean, new) in [
            ("a", 1, true, 1),
            ("a", 1, true, 0),
            ("a", 2, false, 1),
            ("b", 1, false, 1),
            ("a", 2, false, 0),
        ] {
            let before = runs;
            let run = || {
                runs += 1;
                Ok(is_clean)
            };
            assert_eq!(clean.is_clean(backend, seed, run).expect("it runs"), is_clean);
            assert_eq!(runs - before, new, "{backend} {seed}");
        }
        assert!(clean.is_clean("c", 1, || Err(io::Error::other("no servers"))).is_err());
    }
}
