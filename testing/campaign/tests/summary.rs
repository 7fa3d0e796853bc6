//! What is told of the campaigns is what their results say.

use std::path::Path;

use lock_campaign::bugs::{self, Finding};
use lock_campaign::{Outcome, VERDICT, report};

/// How many grants, and under how many faults, each backend has to get through.
const FLOORS: [(&[&str], u64, u64); 2] = [
    (&["memory", "file", "redis", "memcache"], 100_000, 1_000),
    (&["zookeeper", "sentinel", "cluster", "quorum"], 20_000, 300),
];

#[test]
fn the_summary_and_the_page_are_those_of_the_results() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let outcomes = Outcome::all(&docs.join("campaign")).expect("results can be read");
    let findings = Finding::all(&docs.join("campaign")).expect("findings can be read");
    assert!(outcomes.iter().all(Outcome::is_clean), "a result is not clean");
    has_enough(&outcomes);
    assert!(findings.iter().all(|finding| finding.seen.is_some()), "an old bug was not seen");
    for bug in bugs::ALL {
        let is_told = findings.iter().any(|finding| finding.bug == bug.name);
        assert!(is_told, "nobody has looked for {}: lock-campaign bugs {0}", bug.name);
    }
    let page = std::fs::read_to_string(docs.join("campaign.md")).expect("it is there");
    assert!(
        page == report::markdown(&outcomes, &findings),
        "docs/campaign.md is not what the results in docs/campaign say: make it anew, by its last command"
    );
}

/// Results of an older verdict are to be run again, all of a backend together; what is told as of
/// this one has to be enough.
fn has_enough(outcomes: &[Outcome]) {
    for (backend, grants, faults) in FLOORS
        .into_iter()
        .flat_map(|(backends, grants, faults)| backends.iter().map(move |b| (*b, grants, faults)))
    {
        let all = || outcomes.iter().filter(|outcome| outcome.backend == backend);
        assert!(all().next().is_some(), "nothing is told of {backend}");
        if all().all(|outcome| outcome.verdict < VERDICT) {
            println!("{backend}: to be run again");
            continue;
        }
        assert!(all().all(|outcome| outcome.verdict == VERDICT), "{backend}: not all run again");
        let done: u64 = all().map(|outcome| outcome.grants as u64).sum();
        let broken: u64 = all().map(Outcome::faults).sum();
        assert!(done >= grants, "{backend}: {done} grants");
        assert!(broken >= faults, "{backend}: {broken} faults");
    }
}
