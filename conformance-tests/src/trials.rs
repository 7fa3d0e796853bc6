//! Laws and suites become trials of `libtest-mimic`.

use std::fmt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::{Builder, Runtime};

use crate::context::{Ctx, Verdict, Violation};
use crate::harness::{Harness, Pace};
use crate::laws::{Applies, Law, all};

type MakeHarness = dyn Fn() -> Box<dyn Harness> + Send + Sync;

/// A backend under its name, with a way to make lock spaces of it.
#[derive(Clone)]
pub struct Suite {
    name: String,
    make: Arc<MakeHarness>,
}

impl Suite {
    /// `make` is called once for each trial.
    pub fn new(
        name: impl Into<String>,
        make: impl Fn() -> Box<dyn Harness> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), make: Arc::new(make) }
    }

    fn trial(&self, law: &'static Law) -> Trial {
        let make = Arc::clone(&self.make);
        let applies = law.applies_to(&learn(&*make));
        let title = format!("{}::law_{}_{}", self.name, law.number.replace('.', "_"), law.name);
        let kind = match applies {
            Applies::Declared => "",
            Applies::Absent => "undeclared: absence",
            Applies::Unpromised => "not promised",
        };
        Trial::test(title, move || check(law, &*make).map_err(|v| Failed::from(v.to_string())))
            .with_kind(kind)
            .with_ignored_flag(applies == Applies::Unpromised)
    }
}

impl fmt::Debug for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Suite").field(&self.name).finish()
    }
}

/// Checks all laws on all `suites`, as the command line says. For the `main` of a test.
#[must_use]
pub fn run(suites: &[Suite]) -> ExitCode {
    let trials = suites.iter().flat_map(|suite| all().iter().map(|law| suite.trial(law))).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Checks one law on one lock space.
///
/// # Errors
///
/// What was promised, what happened, and where to read.
pub fn check(law: &'static Law, make: &MakeHarness) -> Verdict {
    let harness = make();
    let runtime = runtime(harness.pace());
    let bound = match harness.pace() {
        Pace::Paused => Duration::from_secs(30 * 24 * 3600),
        Pace::Real => Duration::from_secs(120),
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

fn learn(make: &MakeHarness) -> (lock_core::Capabilities, bool) {
    let harness = make();
    let caps = runtime(harness.pace()).block_on(async { harness.client().await.capabilities() });
    (caps, harness.can_evict())
}

fn runtime(pace: Pace) -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().start_paused(pace == Pace::Paused);
    builder.build().expect("a runtime can be made")
}
