//! What the types promise to the compiler and to serialisers.

use lock_core::backend::{Claim, Fault, Grant, Ticket};
use lock_core::{
    Detached, Error, FencingToken, Lock, LockGuard, LockName, Locker, LossSignal, OwnerId,
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
    let detached = Detached::new(name, OwnerId::mint(), std::time::Duration::from_secs(30));
    let json = serde_json::to_string(&detached).unwrap();
    assert_eq!(serde_json::from_str::<Detached>(&json).unwrap(), detached);
    assert!(serde_json::from_str::<LockName>("\"\"").is_err());
    assert!(serde_json::from_str::<OwnerId>("\"short\"").is_err());
}
