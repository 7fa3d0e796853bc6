//! What a user needs whose prefix is `app:`, as the documentation of the crate has it: for one who stands in
//! line, and for one who connects with `order=any`.

pub(crate) const LEAST_RIGHTS: [&str; 2] = [
    "resetkeys ~app:* ~{app:* resetchannels &app:* -@all +info +client|tracking +client|caching \
     +script|load +evalsha +getrange +exists +pttl +time +set +pexpire +del +zadd +zrange +zscore \
     +zcard +zrem +zremrangebyscore +publish +subscribe",
    "resetkeys ~app:* ~{app:* resetchannels -@all +info +client|tracking +client|caching \
     +script|load +evalsha +getrange +exists +pttl +time +set +pexpire +del",
];
