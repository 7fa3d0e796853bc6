//! Trials of `libtest-mimic`, made of laws and suites.

use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use lock_core::Reach;
use lock_core::clock::Moment;
use tokio::runtime::{Builder, Runtime};

use crate::context::{Ctx, Verdict, Violation};
use crate::harness::{ClockMode, Harness, TestEnv};
use crate::laws::{Applies, Law, all, by_number};
use crate::sabotage::{self, Saboteur};

type MakeHarness = dyn Fn() -> Box<dyn Harness> + Send + Sync;

/// A named backend, with a function that makes lock spaces of it.
#[derive(Clone)]
pub struct Suite {
    name: String,
    make: Arc<MakeHarness>,
    /// Filters; a law is checked if all of them accept it.
    wanted: Vec<fn(&Law) -> bool>,
}

impl Suite {
    /// Makes a suite. It calls `make` once for each trial.
    pub fn new(
        name: impl Into<String>,
        make: impl Fn() -> Box<dyn Harness> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), make: Arc::new(make), wanted: Vec::new() }
    }

    /// Limits the suite to the `wanted` laws, where lock spaces are expensive.
    #[must_use]
    pub fn only(mut self, wanted: fn(&Law) -> bool) -> Self {
        self.wanted.push(wanted);
        self
    }

    fn trials(&self) -> Vec<Trial> {
        let env = learn(&*self.make);
        // Laws about networks do not apply to a backend without one.
        let local = env.caps.reach != Reach::Network;
        let laws = all().iter().filter(|law| !(local && law.is_about_networks()));
        let laws = laws.filter(|law| self.wants(law));
        laws.map(|law| self.trial(law, law.applies_to(&env))).collect()
    }

    fn sabotages(&self) -> Vec<Trial> {
        let env = learn(&*self.make);
        let mut trials = Vec::new();
        for saboteur in sabotage::all() {
            let laws = saboteur.caught_by.iter().filter_map(|number| by_number(number));
            let laws = laws.filter(|law| self.wants(law));
            for law in laws.filter(|law| law.applies_to(&env) != Applies::Unpromised) {
                let number = law.number.replace('.', "_");
                let title = format!("{}::law_{number}_catches_{}", self.name, saboteur.name);
                let make = Arc::clone(&self.make);
                trials.push(timed(title, move || catches(law, saboteur, &*make)));
            }
        }
        trials
    }

    fn wants(&self, law: &Law) -> bool {
        self.wanted.iter().all(|wanted| wanted(law))
    }

    fn trial(&self, law: &'static Law, applies: Applies) -> Trial {
        let make = Arc::clone(&self.make);
        let title = format!("{}::law_{}_{}", self.name, law.number.replace('.', "_"), law.name);
        let kind = match applies {
            Applies::Declared => "",
            Applies::Absent => "undeclared: absence",
            Applies::Unpromised => "not promised",
        };
        timed(title, move || check(law, &*make).map_err(|v| Failed::from(v.to_string())))
            .with_kind(kind)
            .with_ignored_flag(applies == Applies::Unpromised)
    }
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Suite").field(&self.name).finish()
    }
}

/// Checks all laws on all `suites`, as the command line says: the `main` of a test.
#[must_use]
pub fn run(suites: &[Suite]) -> ExitCode {
    run_all(suites.iter().flat_map(Suite::trials).collect())
}

/// Checks that the laws' checks catch their [saboteurs](sabotage): the `main` of a test.
///
/// A check must observe the violation itself. A failed operation, or a check that does not end,
/// proves nothing.
#[must_use]
pub fn run_saboteurs(suites: &[Suite]) -> ExitCode {
    run_all(suites.iter().flat_map(Suite::sabotages).collect())
}

/// Runs several trials at once, unless the command line gives a number.
///
/// Checks of leases wait, and hardly compute.
fn run_all(trials: Vec<Trial>) -> ExitCode {
    const AT_ONCE: usize = 8;
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Makes a trial.
///
/// With `TEST_TIMES` in the environment it prints its time, as libtest does with `--report-time`.
fn timed(title: String, check: impl FnOnce() -> Result<(), Failed> + Send + 'static) -> Trial {
    let name = title.clone();
    Trial::test(title, move || {
        let start = Moment::now();
        let verdict = check();
        if std::env::var_os("TEST_TIMES").is_some() {
            println!(
                "test {name} ... took <{:.3}s>",
                Moment::now().saturating_since(start).as_secs_f64()
            );
        }
        verdict
    })
}

fn catches(
    law: &'static Law,
    saboteur: &'static Saboteur,
    make: &MakeHarness,
) -> Result<(), Failed> {
    let violation = catch(law, saboteur, make)?;
    println!("{} caught:\n{violation}\n", saboteur.name);
    Ok(())
}

/// Checks one law on one lock space whose clients are all broken by `saboteur`.
///
/// Returns the violation that the check observed.
///
/// # Errors
///
/// Returns a message if the law was not violated, or if another part than the check failed.
pub fn catch(
    law: &'static Law,
    saboteur: &'static Saboteur,
    make: &dyn Fn() -> Box<dyn Harness>,
) -> Result<Violation, String> {
    match check(law, &|| saboteur.infiltrate(make())) {
        Ok(()) => Err(format!("{} got past law {}", saboteur.name, law.number)),
        Err(violation) if by_accident(&violation.0) => {
            Err(format!("{} was caught by accident:\n{violation}", saboteur.name))
        }
        Err(violation) => Ok(violation),
    }
}

/// Returns whether core or the clock found the violation, and not the check.
fn by_accident(violation: &str) -> bool {
    ["an operation failed", "a verb failed", "the check did not end"]
        .iter()
        .any(|accident| violation.contains(&format!("happened: {accident}")))
}

/// Checks one law on one lock space.
///
/// # Errors
///
/// Returns the promise, the observed behaviour and the place in LAWS.md.
pub fn check(law: &'static Law, make: &dyn Fn() -> Box<dyn Harness>) -> Verdict {
    let harness = make();
    let runtime = runtime(harness.clock_mode());
    let bound = match harness.clock_mode() {
        ClockMode::Paused => Duration::from_secs(30 * 24 * 3600),
        ClockMode::Real => Duration::from_secs(120),
    };
    let verdict = runtime.block_on(async {
        let ctx = Arc::new(Ctx::new(harness).await);
        tokio::time::timeout(bound, law.check(ctx))
            .await
            .unwrap_or_else(|_| Err(Violation(format!("the check did not end within {bound:?}"))))
    });
    runtime.shutdown_background();
    verdict.map_err(|violation| {
        let Law { number, promise, .. } = law;
        Violation(format!(
            "law {number} is broken.\n  promised: {promise}\n  happened: {violation}\n  read: LAWS.md, {number}"
        ))
    })
}

fn learn(make: &MakeHarness) -> TestEnv {
    let harness = make();
    runtime(harness.clock_mode()).block_on(TestEnv::of(&*harness))
}

fn runtime(clock_mode: ClockMode) -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().start_paused(clock_mode == ClockMode::Paused);
    builder.build().expect("a runtime can be made")
}
