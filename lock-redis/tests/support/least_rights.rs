//! The rights of the users in the tests.

/// What a user needs whose prefix is `app:`, as the documentation of the crate has it.
pub(crate) const LEAST_RIGHTS: &str = "resetkeys ~app:* ~{app:* resetchannels -@all +info \
    +client|tracking +client|caching +script|load +evalsha +getrange +exists +pttl +time +set \
    +pexpire +del";
