//! Ports of the loopback interface, and how a test reserves them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use lock_conformance::proxy::low_ports;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::error::ServerError;

/// The number of first ports to try.
const ATTEMPTS: usize = 100;

/// Returns the port at which other members of a Redis cluster reach the one at `port`.
pub(super) fn bus_port(port: u16) -> u16 {
    port + 1
}

/// Consecutive ports that no other test takes during the life of this value. A client that connects
/// between the end of a server and its restart is refused. It never reaches the server of another
/// test.
#[derive(Debug)]
pub(super) struct Ports {
    first: u16,
    _kept: Vec<OwnedFd>,
}

impl Ports {
    pub(super) fn in_a_row(count: usize) -> Result<Self, ServerError> {
        let row = |first: u16| (first..).take(count).map(keep).collect::<io::Result<_>>();
        let mut last = None;
        for first in low_ports().take(ATTEMPTS) {
            match row(first) {
                Ok(kept) => return Ok(Self { first, _kept: kept }),
                Err(error) => last = Some(error),
            }
        }
        Err(ServerError::new(format!("no port can be kept free: {last:?}")))
    }

    pub(super) fn first(&self) -> u16 {
        self.first
    }
}

/// Binds the port without listening. From then on, only servers that set `SO_REUSEADDR` get it. A
/// search for a free port, here and in the proxy, does not set it.
fn keep(port: u16) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    // Set after the bind, it applies to later sockets only: this socket had to be the first one.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::{Ports, keep};

    #[test]
    fn a_port_stays_with_its_server_while_that_is_down() {
        let ports = Ports::in_a_row(2).unwrap();
        for port in [ports.first(), ports.first() + 1] {
            let addr = (Ipv4Addr::LOCALHOST, port);
            for _ in 0..2 {
                assert!(keep(port).is_err(), "another took it");
                assert!(TcpStream::connect(addr).is_err(), "who answers?");
                // The standard library sets the reuse of the address, as servers do.
                let server = TcpListener::bind(addr).unwrap();
                TcpStream::connect(addr).unwrap();
                assert!(keep(port).is_err(), "another took it");
                drop(server);
            }
        }
    }
}
