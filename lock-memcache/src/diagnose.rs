//! Checks of memcached servers: their guarantees for locks, and the limits of these.

mod life;
mod memory;
mod requests;
mod stats;

use lock_core::Executor;
use lock_core::backend::{Fault, FaultKind};
use lock_core::diagnosis::Finding;
use tokio::task::JoinSet;

use crate::config::{Config, Credentials};
use crate::connection::{Connection, Endpoint, Link};

/// Checks each server of the URL. Writes nothing: reads a key of its own that does not exist, and
/// the counter of fencing tokens.
///
/// Servers that do not answer delay it by some seconds.
///
/// # Cancel safety
///
/// Dropping the future closes its connections.
pub async fn diagnose(config: &Config) -> Vec<Finding> {
    match Executor::current_or_new() {
        Ok(executor) => executor.within(check(config)).await,
        Err(error) => vec![Finding::failure("connection", error.to_string())],
    }
}

async fn check(config: &Config) -> Vec<Finding> {
    let mut checking = JoinSet::new();
    for (at, address) in config.servers.iter().enumerate() {
        let (config, address) = (config.clone(), address.clone());
        checking.spawn(async move { (at, check_server(&config, &address).await) });
    }
    let mut of_servers = checking.join_all().await;
    of_servers.sort_by_key(|(at, _)| *at);
    let mut findings = vec![advisory(), servers(config.servers.len())];
    findings.extend(of_servers.into_iter().flat_map(|(_, findings)| findings));
    findings
}

/// Returns the limit of all locks on memcached. It is by design, and no server can be better.
fn advisory() -> Finding {
    Finding::ok(
        "advisory",
        "advisory by design: a restart, a flush or a want of memory may drop a held lock, and its \
         holder is notified by its next renewal; check the fencing tokens, or use another backend",
    )
}

fn servers(count: usize) -> Finding {
    let text = match count {
        1 => "one server: without it no lock is granted".to_owned(),
        _ => format!(
            "{count} servers share the names: each takes its share of the locks with it, and adding, \
             removing or renaming one moves locks, so stop all clients before"
        ),
    };
    Finding::ok("servers", text)
}

async fn check_server(config: &Config, address: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    match connect(config, address).await {
        Ok((connection, login)) => {
            findings.extend([Finding::ok("connection", "it answers"), login]);
            findings.extend(check_connected(config, &connection).await);
        }
        Err(fault) => findings.push(refusal(fault, config.servers.len())),
    }
    findings.into_iter().map(|finding| finding.of_server(address)).collect()
}

/// Connects, and returns the finding about the login.
async fn connect(config: &Config, address: &str) -> Result<(Connection, Finding), Fault> {
    let link = |credentials: Option<&Credentials>| Link::to(Endpoint::new(address, credentials));
    match (link(None).connection().await, &config.credentials) {
        (Ok(connection), None) => {
            let text = "none: every client that reaches the port can read and delete the locks";
            Ok((connection, Finding::ok("login", text)))
        }
        (Ok(connection), Some(_)) => {
            let text = "the server demands no login, and so the user and password of the URL are not \
                        sent: every client that reaches the port can read and delete the locks";
            let remedy = "start the server with -Y, or take them out of the URL";
            Ok((connection, Finding::warning("login", text).remedy(remedy)))
        }
        (Err(fault), Some(credentials)) if fault.kind() == FaultKind::Denied => {
            let connection = link(Some(credentials)).connection().await?;
            let text = "the user and password of the URL are accepted; they go in the clear";
            Ok((connection, Finding::ok("login", text)))
        }
        (Err(fault), _) => Err(fault),
    }
}

/// Returns the failure of a server to which no client connects.
fn refusal(fault: Fault, servers: usize) -> Finding {
    let kind = fault.kind();
    let why = fault.into_source().to_string();
    match kind {
        // Its answer has this form only if it does not close the connection at once.
        _ if why.contains("Too many open connections") => {
            Finding::failure("connections", why).remedy("raise -c, or end idle clients")
        }
        FaultKind::Denied => Finding::failure("login", why)
            .remedy("put user:password@ into the URL, as in the file of the server's option -Y"),
        FaultKind::Unsupported => Finding::failure("commands", why)
            .remedy("use memcached 1.6 or newer, started without -C"),
        _ if servers > 1 => {
            Finding::failure("connection", format!("{why}; its share of the locks is unavailable"))
                .remedy("start the server: taking it out of the URL moves locks")
        }
        _ => Finding::failure("connection", why)
            .remedy("start the server, mend its name or the network; it must not use SASL or TLS"),
    }
}

async fn check_connected(config: &Config, connection: &Connection) -> Vec<Finding> {
    let stats = match stats::of(connection).await {
        Ok(stats) => stats,
        Err(fault) => return vec![refusal(fault, config.servers.len())],
    };
    let mut findings = life::check(&stats);
    findings.extend(memory::check(&stats));
    findings.extend(requests::check(config, connection).await);
    findings
}
