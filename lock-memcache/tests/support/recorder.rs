//! A recorder of commands.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use test_servers::Memcached as Server;

/// A relay to the server that records the commands of clients.
pub(crate) struct Recorder {
    addr: SocketAddr,
    said: Arc<Mutex<Vec<u8>>>,
}

impl Recorder {
    pub(crate) fn start(server: &Server) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a port");
        let addr = listener.local_addr().expect("it listens");
        let said = Arc::<Mutex<Vec<u8>>>::default();
        let (upstream, heard) = (server.addr(), Arc::clone(&said));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(upstream).expect("the server is there");
                let (from_server, to_client) = (server.try_clone(), client.try_clone());
                let heard = Arc::clone(&heard);
                std::thread::spawn(move || {
                    pass(client, server, |bytes| heard.lock().unwrap().extend(bytes));
                });
                std::thread::spawn(move || pass(from_server.unwrap(), to_client.unwrap(), |_| {}));
            }
        });
        Self { addr, said }
    }

    pub(crate) fn url(&self) -> String {
        format!("memcache://{}", self.addr)
    }

    /// Returns the commands since the last call.
    pub(crate) fn said(&self) -> String {
        let said = std::mem::take(&mut *self.said.lock().unwrap());
        String::from_utf8(said).expect("nothing but text is said")
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, note: impl Fn(&[u8])) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        note(&buffer[..read]);
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
