//! The stand-in answers and notifies exactly as a Redis server does.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use test_servers::{Redis, RedisOptions, Step};

use super::keyspace::Peer;
use super::network::{Event, OPERATOR};
use super::wire::{Reply, Request, request, take_reply};

/// A real server that is asked the same at the same times: its clock stands still but for our
/// steps.
pub(crate) struct Original {
    server: Redis,
    peers: HashMap<Peer, Session>,
    now: u64,
    /// How many requests of which kind were compared.
    pub(crate) compared: BTreeMap<String, u64>,
}

struct Session {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Original {
    pub(crate) fn start() -> Self {
        let server = Redis::start(RedisOptions::new().clock());
        server.run_clock_too_fast_by(-1000);
        let mut original =
            Self { server, peers: HashMap::new(), now: 0, compared: BTreeMap::new() };
        original.connect(OPERATOR);
        original.operate(&["HELLO", "3"]);
        // Keys end when a client reads them. At the stand-in they end then, too.
        original.operate(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
        original.now = original.time();
        original
    }

    /// Repeats the requests of the stand-in on an empty server, until the stand-in lost its data.
    pub(crate) fn follow(&mut self, trace: &[Event]) {
        self.peers.retain(|peer, _| *peer == OPERATOR);
        self.operate(&["FLUSHALL"]);
        self.operate(&["SCRIPT", "FLUSH"]);
        for event in trace {
            match event {
                Event::Connected(peer) => self.connect(*peer),
                Event::Disconnected(peer) => self.disconnect(*peer),
                Event::Killed => return,
                Event::Asked { at, by, request, sent } => {
                    self.set_clock(*at);
                    self.ask(*by, request);
                    self.compare(request, *by, sent);
                }
                Event::Swept { at, sent } => {
                    self.set_clock(*at);
                    let look: Request = vec![b"EXISTS".to_vec()];
                    let look = look
                        .into_iter()
                        .chain(sent.iter().flat_map(|(_, bytes)| invalidated(bytes)));
                    let look: Vec<_> = look.collect();
                    self.ask(OPERATOR, &look);
                    self.peer(OPERATOR).next().expect("it is answered");
                    self.compare(&vec![b"(sweep)".to_vec()], OPERATOR, sent);
                }
            }
        }
    }

    fn compare(&mut self, request: &Request, by: Peer, sent: &[(Peer, Vec<u8>)]) {
        let name = String::from_utf8_lossy(&request[0]).into_owned();
        for (peer, bytes) in sent {
            let mut expected = &bytes[..];
            while let Some(stand_in) = take_reply(&mut expected) {
                let original = self.peer(*peer).next();
                // Their descriptions of themselves differ.
                if !(*peer == by && matches!(&*name, "HELLO" | "INFO")) {
                    assert_eq!(
                        original.as_ref().map(comparable),
                        Some(comparable(&stand_in)),
                        "to {peer} after {by} asked {:?} at {}",
                        request
                            .iter()
                            .map(|word| String::from_utf8_lossy(word))
                            .collect::<Vec<_>>(),
                        self.now
                    );
                }
            }
        }
        *self.compared.entry(name).or_default() += 1;
    }

    fn connect(&mut self, peer: Peer) {
        let stream = TcpStream::connect(self.server.addr()).expect("the server runs");
        stream.set_nodelay(true).expect("an option");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("an option");
        self.peers.insert(peer, Session { stream, received: Vec::new() });
    }

    /// The server has noticed when this returns.
    fn disconnect(&mut self, peer: Peer) {
        let Some(session) = self.peers.remove(&peer) else { return };
        let address = session.stream.local_addr().expect("an address").to_string();
        assert_eq!(session.received, b"", "more was sent to {peer} than the stand-in sent");
        self.operate(&["CLIENT", "KILL", "ADDR", &address]);
    }

    fn set_clock(&mut self, at: u64) {
        let step = Duration::from_micros(at.abs_diff(self.now));
        self.server.step_clock(if at >= self.now { Step::Forward(step) } else { Step::Back(step) });
        if self.now / 1_000_000 != at / 1_000_000 {
            assert_eq!(self.time(), at, "its clock is ours");
        }
        self.now = at;
    }

    fn time(&mut self) -> u64 {
        let Reply::Array(parts) = self.operate(&["TIME"]) else { panic!("no time") };
        let parts = parts.iter().map(|part| match part {
            Reply::Bulk(digits) => {
                String::from_utf8_lossy(digits).parse::<u64>().expect("a number")
            }
            other => panic!("{other:?}"),
        });
        parts.fold(0, |sum, part| sum * 1_000_000 + part)
    }

    fn operate(&mut self, words: &[&str]) -> Reply {
        let words: Request = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        self.ask(OPERATOR, &words);
        self.peer(OPERATOR).next().expect("the server answers")
    }

    fn ask(&mut self, by: Peer, words: &Request) {
        self.peer(by).stream.write_all(&request(words)).expect("the server runs");
    }

    fn peer(&mut self, peer: Peer) -> &mut Session {
        self.peers.get_mut(&peer).expect("it is connected")
    }
}

impl Session {
    fn next(&mut self) -> Option<Reply> {
        loop {
            let mut rest = &self.received[..];
            if let Some(reply) = take_reply(&mut rest) {
                let taken = self.received.len() - rest.len();
                self.received.drain(..taken);
                return Some(reply);
            }
            let mut more = [0; 4096];
            match self.stream.read(&mut more) {
                Ok(length @ 1..) => self.received.extend_from_slice(&more[..length]),
                _ => return None,
            }
        }
    }
}

/// Of errors, their code: the words after it say where in the script.
fn comparable(reply: &Reply) -> Reply {
    match reply {
        Reply::Error(text) => Reply::bulk(text.split(' ').next().unwrap_or_default()),
        Reply::Array(items) => Reply::Array(items.iter().map(comparable).collect()),
        other => other.clone(),
    }
}

fn invalidated(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    while let Some(Reply::Push(push)) = take_reply(&mut bytes) {
        if let Some(Reply::Array(names)) = push.into_iter().nth(1) {
            keys.extend(names.into_iter().filter_map(|name| match name {
                Reply::Bulk(name) => Some(name),
                _ => None,
            }));
        }
    }
    keys
}
