//! The memory: whether the server drops locks for want of it.

use lock_core::diagnosis::Finding;

use super::stats::{Stats, number, unseen};
use crate::connection::stat;

/// The part of the memory, in percent, from which on its use is a warning.
const FULL: u64 = 80;

/// More bytes than any lock takes with its key.
const LONGEST_ITEM: u64 = 1024;

pub(super) fn check(stats: &Stats) -> Vec<Finding> {
    vec![eviction(stats), evicted(stats), memory(stats), item_size(stats)]
}

fn eviction(stats: &Stats) -> Finding {
    match stat(stats, "settings evictions") {
        Some("off") => Finding::ok("eviction", "off (-M): at the memory limit held locks stay"),
        Some("on") => Finding::warning(
            "eviction",
            "on: at the memory limit the server drops the items that were not used for the longest \
             time, and locks with them",
        )
        .remedy("start it with -M, and give it nothing but locks"),
        _ => unseen("eviction"),
    }
}

fn evicted(stats: &Stats) -> Finding {
    match number(stats, "evictions") {
        None => unseen("evicted"),
        Some(0) => Finding::ok("evicted", "nothing since its start"),
        Some(count) => Finding::warning(
            "evicted",
            format!("{count} items dropped for want of memory since its start, perhaps locks"),
        )
        .remedy("start it with -M and a larger -m, and give it nothing but locks"),
    }
}

fn memory(stats: &Stats) -> Finding {
    let values = ["curr_items", "bytes", "limit_maxbytes"].map(|name| number(stats, name));
    let [Some(items), Some(bytes), Some(limit)] = values else { return unseen("memory") };
    let percent = bytes.saturating_mul(100) / limit.max(1);
    let text = format!("{items} items use {percent} % of {} MiB", limit >> 20);
    match percent >= FULL {
        true => Finding::warning(
            "memory",
            format!("{text}: at the limit no lock is granted, or locks are dropped"),
        )
        .remedy("raise -m, or move other data to another server"),
        false => Finding::ok("memory", text),
    }
}

fn item_size(stats: &Stats) -> Finding {
    match number(stats, "settings item_size_max") {
        None => unseen("item size"),
        Some(limit) if limit < LONGEST_ITEM => {
            Finding::failure("item size", format!("at most {limit} bytes: a lock may not fit"))
                .remedy("raise -I")
        }
        Some(limit) => Finding::ok("item size", format!("up to {limit} bytes: locks fit")),
    }
}

#[cfg(test)]
mod tests {
    use lock_core::diagnosis::Severity;

    use super::*;

    fn stats(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn a_full_server_is_warned_of() {
        let of = |bytes| {
            let pairs = [("curr_items", "1"), ("bytes", bytes), ("limit_maxbytes", "1000")];
            memory(&stats(&pairs)).severity
        };
        assert_eq!(["799", "800"].map(of), [Severity::Ok, Severity::Warning]);
    }

    #[test]
    fn locks_that_do_not_fit_are_a_failure() {
        let of = |size| item_size(&stats(&[("settings item_size_max", size)])).severity;
        assert_eq!(["1023", "1024"].map(of), [Severity::Failure, Severity::Ok]);
    }

    #[test]
    fn silence_is_no_health() {
        for finding in check(&[]) {
            assert!(finding.text.contains("could not be seen"), "{finding}");
        }
    }
}
