//! Every saboteur is caught by the laws that it breaks, by name.

use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use conformance_tests::sabotage::Saboteur;
use conformance_tests::{Harness, Law, Pace, check, laws, sabotage};
use libtest_mimic::{Arguments, Failed, Trial};
use lock_core::{Backend, Memory};

struct InMemory(Memory);

#[async_trait]
impl Harness for InMemory {
    fn pace(&self) -> Pace {
        Pace::Paused
    }

    async fn client(&self) -> Arc<dyn Backend> {
        Arc::new(self.0.clone())
    }
}

fn catches(law: &'static Law, saboteur: &'static Saboteur) -> Result<(), Failed> {
    let verdict = check(law, &|| saboteur.infiltrate(Box::new(InMemory(Memory::new()))));
    match verdict {
        Ok(()) => Err(format!("{} got past law {}", saboteur.name, law.number).into()),
        Err(violation) if by_accident(&violation.0) => {
            Err(format!("{} was caught by accident:\n{violation}", saboteur.name).into())
        }
        Err(violation) if violation.0.starts_with(&format!("law {} is broken.", law.number)) => {
            println!("{} caught:\n{violation}\n", saboteur.name);
            Ok(())
        }
        Err(violation) => Err(violation.0.into()),
    }
}

/// The check itself must see what is wrong: not core, not a timeout.
fn by_accident(violation: &str) -> bool {
    ["an operation failed", "a verb failed", "the check did not end"]
        .iter()
        .any(|accident| violation.contains(&format!("happened: {accident}")))
}

fn main() -> ExitCode {
    let mut trials = Vec::new();
    for saboteur in sabotage::all() {
        for number in saboteur.caught_by {
            let title = format!("law_{}_catches_{}", number.replace('.', "_"), saboteur.name);
            trials.push(Trial::test(title, move || {
                let law = laws::by_number(number).ok_or_else(|| format!("no law {number}"))?;
                catches(law, saboteur)
            }));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
