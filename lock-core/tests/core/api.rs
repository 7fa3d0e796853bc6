//! The promises of the types to the compiler and to serialisers.

use std::time::Duration;

use lock_core::backend::{Claim, Fault, Grant, Ticket};
use lock_core::{
    Detached, Error, FencingToken, Lock, LockGuard, LockName, Locker, LossSignal, Memory, OwnerId,
};

#[test]
fn everything_travels_between_threads() {
    fn travels<T: Send + Sync + Unpin + 'static>() {}
    travels::<Locker>();
    travels::<Lock>();
    travels::<LockGuard>();
    travels::<LossSignal>();
    travels::<Error>();
    travels::<Detached>();
    travels::<Claim>();
    travels::<Grant>();
    travels::<Ticket>();
    travels::<Fault>();
}

#[test]
fn plain_values_are_small() {
    assert_eq!(size_of::<FencingToken>(), 8);
    assert_eq!(size_of::<OwnerId>(), 16);
    assert_eq!(size_of::<LockGuard>(), 8);
    assert_eq!(size_of::<LockName>(), 16);
}

#[tokio::test]
async fn the_ttl_range_is_what_is_accepted() {
    let day = Duration::from_secs(24 * 3600);
    for (locks, longest) in [
        (Locker::new(Memory::new()), day),
        (Locker::builder(Memory::new()).max_ttl(2 * day).build(), 2 * day),
        (Locker::builder(Memory::new()).max_ttl(1000 * day).build(), 365 * day),
    ] {
        let range = locks.ttl_range();
        assert_eq!(*range.end(), longest);
        let (below, above) = (*range.start() / 2, *range.end() + Duration::from_nanos(1));
        for (ttl, is_accepted) in
            [(*range.start(), true), (*range.end(), true), (below, false), (above, false)]
        {
            let lock = locks.lock("n").unwrap().ttl(ttl);
            assert_eq!(lock.try_acquire().await.is_ok(), is_accepted, "{ttl:?} in {range:?}");
        }
    }
}

#[test]
fn names_and_tokens_show_what_they_are() {
    let name = LockName::new("orders/\u{7}42").unwrap();
    assert_eq!(name.to_string(), r#""orders/\u{7}42""#);
    assert_eq!(format!("{name:?}"), r#"LockName("orders/\u{7}42")"#);
    let token = FencingToken::from_u64(1_763_632);
    assert_eq!((token.to_string(), format!("{token:>9}")), ("1763632".into(), "  1763632".into()));
    assert_eq!(token.to_string().parse::<FencingToken>().unwrap(), token);
}

#[cfg(feature = "serde")]
#[test]
fn json_carries_tokens_as_strings_because_readers_round_numbers() {
    let token = FencingToken::from_backend(1_763_632_800_000_000).unwrap();
    let json = serde_json::to_string(&token).unwrap();
    assert_eq!(json, format!("\"{token}\""));
    assert_eq!(serde_json::from_str::<FencingToken>(&json).unwrap(), token);
    assert!(token.as_u64() > 1 << 53, "or this would prove nothing");
}

#[cfg(feature = "serde")]
#[test]
fn a_detached_lock_survives_the_trip_to_another_process() {
    let name = LockName::new("orders/42").unwrap();
    let detached = Detached::new(name, OwnerId::mint(), Duration::from_secs(30));
    let json = serde_json::to_string(&detached).unwrap();
    assert_eq!(serde_json::from_str::<Detached>(&json).unwrap(), detached);
    assert!(serde_json::from_str::<LockName>("\"\"").is_err());
    assert!(serde_json::from_str::<OwnerId>("\"short\"").is_err());
}
