//! Servers that run already.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use lock_history::Assumption;

use super::site::{BY_NETWORK, Site, SiteParams};
use crate::kind::{FaultSupport, Kind};

pub(super) struct Remote {
    before: String,
    after: String,
    servers: Vec<SocketAddr>,
}

impl Remote {
    /// Parses `scheme://[user:password@]host:port[,host:port…][/…][?…]`.
    pub(super) fn new(url: &str) -> Result<Self, String> {
        let (scheme, rest) = url.split_once("://").ok_or("write scheme://host:port")?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, after) = rest.split_at(end);
        let (user, hosts) =
            authority.rsplit_once('@').map_or(("", authority), |(user, hosts)| (user, hosts));
        let servers: Result<Vec<SocketAddr>, String> = hosts.split(',').map(address).collect();
        let at = if user.is_empty() { "" } else { "@" };
        let before = format!("{scheme}://{user}{at}");
        Ok(Self { before, after: after.to_owned(), servers: servers? })
    }
}

fn address(host: &str) -> Result<SocketAddr, String> {
    let mut found = host.to_socket_addrs().map_err(|e| format!("{host:?} is no host:port: {e}"))?;
    found.next().ok_or_else(|| format!("{host:?} has no address"))
}

impl Site for Remote {
    fn params(&self) -> SiteParams {
        let timeout = Duration::from_secs(1);
        SiteParams::new(timeout * 2, timeout, timeout / 2)
    }

    fn support(&self, kind: Kind) -> FaultSupport {
        match kind {
            Kind::Broken => FaultSupport::Breaks(Assumption::A3),
            Kind::ClientKilled
            | Kind::ClientStopped
            | Kind::ClientStarved
            | Kind::ClientClockStepped
            | Kind::ShortLeases => FaultSupport::Yes,
            kind if kind.is_in_network() || kind.is_aimed() => FaultSupport::Yes,
            kind if kind.is_in_calls() => FaultSupport::No(BY_NETWORK),
            _ => FaultSupport::No("the campaign did not start the servers"),
        }
    }

    fn url(&self, through: &[SocketAddr]) -> String {
        let servers = if through.is_empty() { &self.servers } else { through };
        let hosts: Vec<String> = servers.iter().map(ToString::to_string).collect();
        format!("{}{}{}", self.before, hosts.join(","), self.after)
    }

    fn upstreams(&self) -> Vec<SocketAddr> {
        self.servers.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::{Remote, Site};

    #[test]
    fn url_replaces_only_hosts() {
        let remote = Remote::new("zookeeper://u:p@127.0.0.1:1,127.0.0.1:2/a?layout=kazoo").unwrap();
        let through = ["127.0.0.1:7".parse().unwrap(), "127.0.0.1:8".parse().unwrap()];
        let url = remote.url(&through);
        assert_eq!(url, "zookeeper://u:p@127.0.0.1:7,127.0.0.1:8/a?layout=kazoo");
        assert!(Remote::new("127.0.0.1:1").is_err());
    }
}
