//! Removal of the keys that a released lock leaves for a while.

use lock_core::backend::Fault;
use lock_core::{Error, ErrorKind, LockName};

use crate::backend::Redis;
use crate::config::Config;
use crate::scripts::Call;
use crate::topology::request::Request;

/// Deletes the keys of a lock that no client uses, and none will: its fencing token, which outlives
/// it for ten minutes. A later holder of the lock could get the same token again.
///
/// # Errors
///
/// As [`Redis::connect`], and if the server does not delete them.
///
/// # Cancel safety
///
/// Dropping the future may leave the keys until they expire.
#[doc(hidden)] // for the locks of a diagnosis, and not a public API
pub async fn forget(config: &Config, name: &LockName) -> Result<(), Error> {
    let redis = Redis::connect(config.clone()).await?;
    let forgetting = async {
        let keys = redis.inner.keys.of(name).map_err(error_of)?;
        let ([lock, token_key, queue, processes, release_key], share) = (keys.all(), keys.share());
        let call = Call::delete(&[lock, token_key, queue, processes, release_key, &share]);
        let request = Request::new("delete the keys of a lock", &keys, &call);
        redis.inner.servers.run::<i64>(&request).await.map(drop).map_err(error_of)
    };
    redis.inner.executor.within(forgetting).await
}

fn error_of(fault: Fault) -> Error {
    let message = "cannot delete the keys of a lock";
    Error::new(ErrorKind::from(fault.kind()), message).with_source(fault.into_source())
}
