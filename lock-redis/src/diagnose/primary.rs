//! All checks of one server that holds locks.

use std::sync::Arc;

use lock_core::diagnosis::Finding;

use crate::config::Config;
use crate::connection::client_state::ClientState;
use crate::diagnose::probe::{Probe, unusable};
use crate::diagnose::{foreign, rights, server, timing};

/// Checks the only server.
pub(crate) async fn check_single(config: &Config) -> Vec<Finding> {
    let client = Arc::new(ClientState::new(config));
    match Probe::open(config, &client, Some(config.keys.for_trial(0))).await {
        Ok(probe) => check(&probe).await,
        Err(fault) => vec![unusable(fault)],
    }
}

/// Checks a server that was connected to.
pub(crate) async fn check(probe: &Probe) -> Vec<Finding> {
    let mut findings = vec![Finding::ok("connection", "the server answers")];
    let timing = timing::Measurement::begin(probe).await;
    findings.extend(server::check(probe));
    findings.extend(rights::check(probe).await);
    findings.push(foreign::check(probe).await);
    findings.extend(timing.end(probe).await);
    findings
}
