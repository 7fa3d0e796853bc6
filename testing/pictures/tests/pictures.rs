//! The pictures in `docs/pictures` are those of the recorded results. With `BLESS=1` they are
//! written instead of compared.

use std::path::Path;

#[test]
fn the_pictures_are_those_of_the_recorded_results() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (name, svg) in lock_pictures::draw(&root) {
        let path = root.join("docs/pictures").join(name);
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, &svg).expect("the picture can be written");
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            there == svg,
            "docs/pictures/{name} is out of date; draw it again with: BLESS=1 cargo test -p lock-pictures"
        );
    }
}
