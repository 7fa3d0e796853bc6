//! What a user needs whose prefix is `app:`, as the documentation of the crate has it.

pub(crate) const LEAST_RIGHTS: &str = "resetkeys ~app:* ~{app:* resetchannels &app:* -@all \
    +info +client|tracking +client|caching +script|load +evalsha +getrange +exists +pttl +time \
    +set +pexpire +del +zadd +zrange +zscore +zcard +zrem +zremrangebyscore +publish +subscribe";

/// The same for one who connects with `order=any`.
pub(crate) const LEAST_RIGHTS_IN_ANY_ORDER: &str = "resetkeys ~app:* ~{app:* resetchannels -@all \
    +info +client|tracking +client|caching +script|load +evalsha +getrange +exists +pttl +time \
    +set +pexpire +del";
