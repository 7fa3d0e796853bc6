//! Checks of the servers for `lockctl doctor`: their guarantees, and the limits of these.
//!
//! No check writes: those that try a right use keys that do not exist, as `rights.lua` does.

mod cluster;
mod foreign;
mod primary;
mod probe;
mod rights;
mod sentinel;
mod server;
mod timing;

use lock_core::diagnosis::Finding;
use lock_core::{Error, Executor};

use crate::config::Config;
use crate::connection::address::Endpoint;

/// Checks the servers that `config` names, and returns a finding for each check.
///
/// It takes about two seconds, in which it measures the server's clock, and up to ten on a slow
/// network. A server that cannot be reached is a finding. It changes no key, and needs no right
/// beyond those of the locks; a check that the rights forbid is a warning. Servers that record
/// refused commands (`ACL LOG`) record such checks.
///
/// # Cancel safety
///
/// Dropping the future stops the checks. They leave nothing on the server.
pub async fn diagnose(config: &Config) -> Vec<Finding> {
    match Executor::current_or_new() {
        // Large, and done once.
        Ok(executor) => executor.within(Box::pin(check(config))).await,
        Err(error) => vec![not_started(&error)],
    }
}

async fn check(config: &Config) -> Vec<Finding> {
    if let Err(error) = config.check_files().await {
        return vec![not_started(&error)];
    }
    match &config.endpoint {
        _ if !config.members.is_empty() => cluster::check(config).await,
        Endpoint::Sentinel(sentinels) => sentinel::check(config, sentinels).await,
        Endpoint::Fixed(_) => primary::check_single(config).await,
    }
}

fn not_started(error: &Error) -> Finding {
    Finding::failure("connection", error.to_string())
}
