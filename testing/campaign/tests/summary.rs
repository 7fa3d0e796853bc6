//! The page about the campaign agrees with the stored results.

use std::path::Path;

use lock_campaign::bugs::{self, Finding};
use lock_campaign::{Outcome, VERDICT, report};

/// The least number of grants and of faults in the results of each backend.
const MINIMUMS: [(&[&str], u64, u64); 2] = [
    (&["memory", "file", "redis", "memcache"], 100_000, 1_000),
    (&["zookeeper", "sentinel", "cluster", "quorum"], 20_000, 300),
];

#[test]
fn page_agrees_with_results() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let outcomes = Outcome::load_all(&docs.join("campaign")).expect("the results are readable");
    let findings = Finding::load_all(&docs.join("campaign")).expect("the findings are readable");
    assert!(outcomes.iter().all(Outcome::is_clean), "a result is not clean");
    check_minimums(&outcomes);
    assert!(
        findings.iter().all(|finding| finding.seen.is_some()),
        "a planted bug was not detected"
    );
    for bug in bugs::ALL {
        let is_known = findings.iter().any(|finding| finding.bug == bug.name);
        assert!(is_known, "{} has no finding: run lock-campaign bugs {0}", bug.name);
    }
    let page = std::fs::read_to_string(docs.join("campaign.md")).expect("the page exists");
    assert!(
        page == report::markdown(&outcomes, &findings),
        "docs/campaign.md is not up to date with docs/campaign: generate it by its last command"
    );
}

/// Checks that each backend has enough results of the current verdict. Results of an older verdict
/// must be repeated, all of a backend together.
fn check_minimums(outcomes: &[Outcome]) {
    for (backend, grants, faults) in MINIMUMS
        .into_iter()
        .flat_map(|(backends, grants, faults)| backends.iter().map(move |b| (*b, grants, faults)))
    {
        let all = || outcomes.iter().filter(|outcome| outcome.backend == backend);
        assert!(all().next().is_some(), "{backend} has no results");
        if all().all(|outcome| outcome.verdict < VERDICT) {
            println!("{backend}: to be repeated");
            continue;
        }
        assert!(all().all(|outcome| outcome.verdict == VERDICT), "{backend}: not all are repeated");
        let total_grants: u64 = all().map(|outcome| outcome.grants as u64).sum();
        let total_faults: u64 = all().map(Outcome::faults).sum();
        assert!(total_grants >= grants, "{backend}: {total_grants} grants");
        assert!(total_faults >= faults, "{backend}: {total_faults} faults");
    }
}
