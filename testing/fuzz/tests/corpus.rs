//! Replays the corpus of each target, with mutations of its files by a fixed seed.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use fastrand::Rng;
use lock_fuzz::target;

/// The mutated inputs of each target.
const RUNS: usize = 3000;

/// The longest input, in bytes.
const MAX_LEN: usize = 2048;

/// Runs a target on its corpus, and on mutations of it.
fn replay(name: &str) {
    let target = target(name).expect("there is such a target");
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let mut files: Vec<_> = fs::read_dir(&directory)
        .expect("each target has a corpus")
        .map(|entry| entry.expect("it is readable").path())
        .collect();
    files.sort();
    let corpus: Vec<Vec<u8>> =
        files.iter().map(|file| fs::read(file).expect("it is readable")).collect();
    let run = |input: &[u8]| {
        if catch_unwind(AssertUnwindSafe(|| target(input))).is_err() {
            panic!("{name} fails on {}", input.escape_ascii());
        }
    };
    corpus.iter().for_each(|input| run(input));
    let mut dice = Rng::with_seed(1);
    for _ in 0..RUNS {
        run(&mutated(&corpus, &mut dice));
    }
}

/// Changes one input of the corpus in one to four places.
fn mutated(corpus: &[Vec<u8>], dice: &mut Rng) -> Vec<u8> {
    let mut input = corpus[dice.usize(..corpus.len())].clone();
    for _ in 0..dice.usize(1..5) {
        let at = dice.usize(..=input.len());
        let end = (at + dice.usize(..8)).min(input.len());
        let other = &corpus[dice.usize(..corpus.len())];
        let from = dice.usize(..=other.len());
        match dice.u8(..6) {
            0 => drop(input.drain(at..end)),
            1 => input.insert(at, dice.u8(..)),
            2 => input.truncate(at),
            3 => drop(input.splice(at..end, other[from..].iter().take(16).copied())),
            4 => input.extend_from_within(at..end),
            _ => input[at..end].iter_mut().take(1).for_each(|byte| *byte ^= 1 << dice.u8(..8)),
        }
    }
    input.truncate(MAX_LEN);
    input
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name));
        })*

        #[test]
        fn each_target_is_replayed() {
            assert_eq!([$(stringify!($name)),*], lock_fuzz::TARGETS.map(|(name, _)| name));
        }
    };
}

targets! { file_record memcached_wire name redis_value url zookeeper_node }
