//! `docs/interop.md` agrees with the recorded results.

use std::path::Path;

use lock_fleet::{Record, page};

#[test]
fn page_agrees_with_record() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let record = Record::load(&here.join("seen.jsonl")).expect("the record is readable");
    let path = here.join("../../docs/interop.md");
    let page = page::markdown(&record);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &page).expect("the page can be written");
    }
    let written = std::fs::read_to_string(&path).expect("the page exists");
    assert!(
        written == page,
        "docs/interop.md is out of date; write it anew with: BLESS=1 cargo test -p lock-fleet --test page"
    );
}
