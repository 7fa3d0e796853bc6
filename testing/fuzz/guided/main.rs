//! Runs the target that `TARGET` in the environment names.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("TARGET").expect("TARGET names a target of lock-fuzz");
    lock_fuzz::target(&name).unwrap_or_else(|| panic!("lock-fuzz has no target {name}"))
});

fuzz_target!(|data: &[u8]| TARGET(data));
