//! The rights that a user with the prefix `app:` needs, as the crate's documentation lists them:
//! for queued claims, and for `order=any`.

pub(crate) const LEAST_RIGHTS: [&str; 2] = [
    "resetkeys ~app:* ~{app:* resetchannels &app:* -@all +info +client|tracking +client|caching \
     +script|load +evalsha +getrange +exists +pttl +time +set +incrby +pexpire +del +zadd +zrange \
     +zscore +zcard +zrem +zremrangebyscore +publish +subscribe",
    "resetkeys ~app:* ~{app:* resetchannels -@all +info +client|tracking +client|caching \
     +script|load +evalsha +getrange +exists +pttl +time +set +incrby +pexpire +del",
];

/// The further rights for a list of locks.
pub(crate) const RIGHTS_TO_LIST: &str = "+scan +dbsize";

/// Returns the further rights that the documentation grants where the server knows the command. The
/// server program is asked, because users exist when a server starts.
pub(crate) fn rights_to_delete() -> &'static str {
    static KNOWN: std::sync::LazyLock<&str> = std::sync::LazyLock::new(|| {
        let version = std::process::Command::new("redis-server").arg("--version").output();
        let version =
            version.expect("there is a server: run ./test, or apt-get install redis-server");
        let version = String::from_utf8_lossy(&version.stdout).into_owned();
        let major =
            version.strip_prefix("Valkey server v=").and_then(|rest| rest.split('.').next());
        match major.and_then(|major| major.parse::<u32>().ok()) {
            Some(9..) => "+delifeq",
            _ => "",
        }
    });
    *KNOWN
}
