//! The names of the locks of a run.

/// Returns the name of the lock with this number. No name is a part of another one, because proxies
/// find the requests of a lock by its name.
#[must_use]
pub(crate) fn lock_name(number: usize) -> String {
    format!("n{number:02}")
}

/// Returns the name under which the history records the resource that checks no fencing tokens.
#[must_use]
pub(crate) fn unfenced(lock: &str) -> String {
    format!("{lock}~unfenced")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_lock_name_contains_another() {
        let names: Vec<String> = (0..100).map(lock_name).collect();
        for (number, name) in names.iter().enumerate() {
            let like = names.iter().filter(|other| other.contains(name.as_str()));
            assert_eq!(like.count(), 1, "{number}");
        }
    }
}
