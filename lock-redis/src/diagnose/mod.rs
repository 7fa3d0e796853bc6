//! Checks of a server, for `lockctl doctor`.

use lock_core::diagnosis::Finding;

use crate::backend::Redis;
use crate::config::Config;

/// Returns the findings about the servers of `config`.
///
/// A server that does not answer is a finding as well. Nothing is left behind.
///
/// # Cancel safety
///
/// Dropping the future ends the checks.
pub async fn diagnose(config: &Config) -> Vec<Finding> {
    vec![match Redis::connect(config.clone()).await {
        Ok(_) => Finding::ok("connection", "the server answers"),
        Err(error) => Finding::failure("connection", format!("{error:#}")),
    }]
}
