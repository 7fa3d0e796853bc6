//! What is told of the campaigns is what their results say.

use std::path::Path;

use lock_campaign::bugs::{self, Finding};
use lock_campaign::{Outcome, report};

#[test]
fn the_summary_and_the_page_are_those_of_the_results() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let outcomes = Outcome::all(&docs.join("campaign")).expect("results can be read");
    let findings = Finding::all(&docs.join("campaign")).expect("findings can be read");
    assert!(outcomes.iter().all(Outcome::is_clean), "a result is not clean");
    assert!(findings.iter().all(|finding| finding.seen.is_some()), "an old bug was not seen");
    for bug in bugs::ALL {
        let is_told = findings.iter().any(|finding| finding.bug == bug.name);
        assert!(is_told, "nobody has looked for {}: lock-campaign bugs {0}", bug.name);
    }
    for (file, text) in [
        ("campaign.md", report::markdown(&outcomes, &findings)),
        ("campaign.html", report::html(&outcomes, &findings)),
    ] {
        let told = std::fs::read_to_string(docs.join(file)).expect("it is there");
        assert!(
            told == text,
            "docs/{file} is not what the results in docs/campaign say: make it anew, by the command in README.md"
        );
    }
}
