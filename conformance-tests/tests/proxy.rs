//! Each fault of the proxy does what its name says.

use std::future::IntoFuture;
use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use lock_conformance::proxy::{Direction, Fault, Match, Proxy};
use lock_core::clock::{Moment, sleep};
use test_servers::{Redis, RedisOptions, Reply};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;

/// The bound on all waits, for a busy machine.
const BOUND: Duration = Duration::from_secs(30);

async fn within<F: IntoFuture>(what: F) -> F::Output {
    tokio::time::timeout(BOUND, what).await.expect("it happens before the deadline")
}

/// A server that answers each line with `re:` and the line, and remembers its input.
struct LineServer {
    addr: SocketAddr,
    log: Arc<watch::Sender<Vec<String>>>,
}

impl LineServer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let log = Arc::new(watch::Sender::new(Vec::new()));
        let shared = Arc::clone(&log);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                shared.send_modify(|log| log.push("connected".into()));
                tokio::spawn(answer_lines(stream, Arc::clone(&shared)));
            }
        });
        Self { addr, log }
    }

    fn got(&self) -> Vec<String> {
        self.log.borrow().clone()
    }

    /// Waits until its input is exactly this, in this order.
    async fn gets(&self, expected: &[&str]) {
        let mut log = self.log.subscribe();
        let got = tokio::time::timeout(BOUND, log.wait_for(|log| log == expected)).await;
        assert!(got.is_ok(), "expected {expected:?}, got {:?}", self.got());
    }
}

async fn answer_lines(stream: TcpStream, log: Arc<watch::Sender<Vec<String>>>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = String::new();
        let end = match stream.read_line(&mut line).await {
            Ok(0) => "FIN",
            Err(_) => "RST",
            Ok(_) => {
                log.send_modify(|log| log.push(line.trim_end().into()));
                // It fails if the client is gone, which the next read reports.
                let _ = stream.write_all(format!("re:{line}").as_bytes()).await;
                continue;
            }
        };
        // On to the close: a half-closed connection gets its FIN.
        return log.send_modify(|log| log.push(end.into()));
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    async fn connect(proxy: &Proxy) -> Self {
        Self::connect_to(proxy.addr()).await
    }

    async fn connect_to(addr: SocketAddr) -> Self {
        Self::on(within(TcpStream::connect(addr)).await.unwrap())
    }

    /// Connects from this address.
    async fn connect_from(client: Ipv4Addr, proxy: &Proxy) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((client, 0).into()).unwrap();
        Self::on(within(socket.connect(proxy.addr())).await.unwrap())
    }

    fn on(stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    async fn send(&mut self, text: &str) {
        within(self.0.write_all(text.as_bytes())).await.unwrap();
    }

    async fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        within(self.0.read_line(&mut line)).await?;
        Ok(line.trim_end().to_owned())
    }

    async fn ask(&mut self, line: &str) -> String {
        self.send(&format!("{line}\n")).await;
        self.line().await.unwrap()
    }

    /// Returns true if neither a byte nor a FIN nor a RST has arrived.
    fn hears_nothing(&self) -> bool {
        let read = self.0.get_ref().try_read(&mut [0]);
        self.0.buffer().is_empty() && read.is_err_and(|e| e.kind() == ErrorKind::WouldBlock)
    }

    async fn is_reset(&mut self) {
        let error = self.line().await.expect_err("a RST, and no FIN before it");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }

    fn reset(self) {
        self.0.into_inner().set_zero_linger().unwrap();
    }
}

/// Checks a reset at once. The RST may come before the client has checked its connection for the
/// first time, or after it.
async fn is_reset_at_once(proxy: &Proxy) {
    match within(TcpStream::connect(proxy.addr())).await {
        Ok(stream) => Client(BufReader::new(stream)).is_reset().await,
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

async fn line_server() -> (LineServer, Proxy) {
    let server = LineServer::start().await;
    let proxy = Proxy::start(server.addr).unwrap();
    (server, proxy)
}

fn redis() -> (Redis, Proxy) {
    let redis = Redis::start(RedisOptions::new());
    let proxy = Proxy::start(redis.addr()).unwrap();
    (redis, proxy)
}

fn resp(words: &[&str]) -> String {
    let words: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{words}", words.matches('$').count())
}

#[tokio::test]
async fn forwards_and_counts() {
    let (server, proxy) = line_server().await;
    let mut client = Client::connect(&proxy).await;
    assert_eq!(client.ask("one").await, "re:one");
    assert_eq!(client.ask("two").await, "re:two");
    drop(client);
    server.gets(&["connected", "one", "two", "FIN"]).await;
    within(proxy.until(|stats| stats.live == 0)).await;
    let stats = proxy.stats();
    assert_eq!((stats.connections, stats.refused), (1, 0));
    assert_eq!((stats.to_server.received, stats.to_server.sent), (8, 8));
    assert_eq!((stats.to_client.received, stats.to_client.sent), (14, 14));
}

#[tokio::test]
async fn forwards_more_than_it_keeps() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap()).unwrap();
    let sent: Vec<u8> = (0..20_000_000_u32).map(|i| (i % 251) as u8).collect();
    let mut client = within(TcpStream::connect(proxy.addr())).await.unwrap();
    let (mut server, _) = within(listener.accept()).await.unwrap();
    let mut got = Vec::new();
    let writing = async {
        client.write_all(&sent).await.unwrap();
        client.shutdown().await.unwrap();
    };
    let ((), read) = within(async { tokio::join!(writing, server.read_to_end(&mut got)) }).await;
    read.unwrap();
    assert!(sent == got, "20 MB arrive as they were");
}

#[tokio::test]
async fn a_sender_has_to_wait_once_a_black_hole_is_full() {
    let (server, proxy) = line_server().await;
    let mut client = Client::connect(&proxy).await;
    client.ask("hello").await;
    proxy.set(Fault::BlackHole);
    let stream = client.0.get_mut();
    let flood = [b'x'; 1 << 16];
    let before = proxy.stats().to_server.received;
    let writing = async {
        for _ in 0..2000 {
            stream.write_all(&flood).await.unwrap();
        }
    };
    tokio::select! {
        () = writing => panic!("125 MB fit into a bounded buffer"),
        () = within(proxy.until(|stats| stats.to_server.received - before >= 1 << 19)) => {}
    }
    // No condition says that a write is blocked: nothing happens for a while.
    let more = vec![b'x'; 50 << 20];
    let rest = tokio::time::timeout(Duration::from_millis(100), stream.write_all(&more));
    assert!(rest.await.is_err(), "50 MB more fit into a bounded buffer");
    let kept = proxy.stats().to_server.received - before;
    assert!(kept < (1 << 20) + (1 << 16), "{kept} bytes were taken");
    assert_eq!(server.got(), ["connected", "hello"]);
}

#[tokio::test]
async fn a_cut_comes_after_the_server_has_answered_and_before_the_client_knows() {
    let (server, proxy) = line_server().await;
    let hit = proxy.cut_after("two");
    let mut client = Client::connect(&proxy).await;
    assert_eq!(client.ask("one").await, "re:one");
    client.send("two\n").await;
    within(hit).await.unwrap();
    client.is_reset().await;
    server.gets(&["connected", "one", "two", "FIN"]).await;
    assert_eq!(proxy.stats().to_client.sent, 7, "not a byte of the answer got through");
}

#[tokio::test]
async fn a_cut_takes_effect_on_a_real_server() {
    let (redis, proxy) = redis();
    let hit = proxy.cut_after(Match::on("INCR").nth(3));
    let mut client = Client::connect(&proxy).await;
    for expected in [":1", ":2"] {
        client.send(&resp(&["INCR", "n"])).await;
        assert_eq!(client.line().await.unwrap(), expected);
    }
    client.send(&resp(&["INCR", "n"])).await;
    within(hit).await.unwrap();
    client.is_reset().await;
    assert_eq!(redis.command(&["GET", "n"]).text(), "3");
}

#[tokio::test]
async fn a_forged_answer_comes_instead_of_the_servers_and_what_follows_passes() {
    let (server, proxy) = line_server().await;
    let hit = proxy.forge("two", "a lie\n");
    let mut client = Client::connect(&proxy).await;
    assert_eq!(client.ask("one").await, "re:one");
    assert_eq!(client.ask("two").await, "a lie");
    within(hit).await.unwrap();
    assert_eq!(client.ask("three").await, "re:three");
    server.gets(&["connected", "one", "two", "three"]).await;
}

#[tokio::test]
async fn an_empty_match_means_the_next_request() {
    let (_server, proxy) = line_server().await;
    let mut client = Client::connect(&proxy).await;
    assert_eq!(client.ask("one").await, "re:one");
    let hit = proxy.cut_after("");
    client.send("two\n").await;
    within(hit).await.unwrap();
    client.is_reset().await;
}

#[tokio::test]
async fn a_cut_can_be_meant_for_one_connection() {
    let (_server, proxy) = line_server().await;
    let hit = proxy.cut_after(Match::on("same").connection(1));
    let mut first = Client::connect(&proxy).await;
    assert_eq!(first.ask("same").await, "re:same");
    let mut second = Client::connect(&proxy).await;
    second.send("same\n").await;
    within(hit).await.unwrap();
    second.is_reset().await;
    assert_eq!(first.ask("same").await, "re:same");
}

#[tokio::test]
async fn one_request_can_be_meant_twice() {
    let (_server, proxy) = line_server().await;
    let (by_verb, by_key) = (proxy.cut_after("SET"), proxy.cut_after("key"));
    let mut client = Client::connect(&proxy).await;
    client.send("SET key\n").await;
    within(by_verb).await.unwrap();
    within(by_key).await.unwrap();
    client.is_reset().await;
}

#[tokio::test]
async fn a_cut_that_is_called_off_does_not_happen() {
    let (_server, proxy) = line_server().await;
    drop(proxy.cut_after("one"));
    let mut client = Client::connect(&proxy).await;
    assert_eq!(client.ask("one").await, "re:one");
}

#[tokio::test]
async fn calling_off_a_fault_reports_whether_it_was_too_late() {
    let (_server, proxy) = line_server().await;
    let (early, held) = (proxy.cut_after("needle"), proxy.hold("needle"));
    assert!(early.call_off() && held.call_off(), "nothing has matched");
    let mut client = Client::connect(&proxy).await;
    assert_eq!(client.ask("needle").await, "re:needle");
    let mut late = proxy.cut_after("needle");
    client.send("needle\n").await;
    within(late.happened()).await.unwrap();
    client.is_reset().await;
    assert!(!late.call_off(), "it has happened");
}

#[tokio::test]
async fn a_cut_without_an_answer_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap()).unwrap();
    let hit = proxy.cut_after("x");
    let mut client = Client::connect(&proxy).await;
    client.send("x").await;
    let (mut server, _) = within(listener.accept()).await.unwrap();
    within(server.read_exact(&mut [0])).await.unwrap();
    drop(server);
    assert_eq!(within(hit).await.unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert_eq!(client.line().await.unwrap(), "", "the FIN of the server");
}

#[tokio::test]
async fn matches_across_segments_and_after_false_starts() {
    let (_server, proxy) = line_server().await;
    let mut count = proxy.count("aabaaa");
    let mut client = Client::connect(&proxy).await;
    let mut received = 0;
    // Each piece is on its own: the next one is sent when the proxy has got it.
    for piece in ["xaabaab", "a", "aa", "b", "aaa", "ba"] {
        client.send(piece).await;
        received += piece.len() as u64;
        within(proxy.until(|stats| stats.to_server.received == received)).await;
    }
    assert_eq!(count.seen(), 1, "in xaab(aabaaa)baaaba, and matches do not overlap");
    client.send("aabaaaaabaaa").await;
    within(count.reaches(3)).await.unwrap();
}

#[tokio::test]
async fn a_cut_matches_across_segments() {
    let (server, proxy) = line_server().await;
    proxy.set(Fault::Slice);
    let hit = proxy.cut_after(Match::on("needle\n").nth(2));
    let mut client = Client::connect(&proxy).await;
    assert_eq!(client.ask("needle").await, "re:needle");
    for byte in "needle\n".chars() {
        client.send(&byte.to_string()).await;
    }
    within(hit).await.unwrap();
    client.is_reset().await;
    server.gets(&["connected", "needle", "needle", "FIN"]).await;
}

#[tokio::test]
async fn a_black_hole_swallows_both_directions_without_fin_or_rst() {
    let (server, proxy) = line_server().await;
    let mut client = Client::connect(&proxy).await;
    client.ask("before").await;
    let mut leaver = Client::connect(&proxy).await;
    leaver.ask("bye").await;
    proxy.set(Fault::BlackHole);
    let before = proxy.stats();

    client.send("during\n").await;
    drop(leaver);
    let mut late = Client::connect(&proxy).await;
    late.send("new\n").await;
    within(proxy.until(|stats| stats.to_server.received > before.to_server.received)).await;
    // Once the fourth one is accepted, the third one has been served.
    let _last = Client::connect(&proxy).await;
    within(proxy.until(|stats| stats.connections == 4)).await;
    assert!(client.hears_nothing() && late.hears_nothing());
    // The server accepts in order: this connection is the first one that it sees.
    let mut direct = Client::connect_to(server.addr).await;
    direct.ask("direct").await;
    server.gets(&["connected", "before", "connected", "bye", "connected", "direct"]).await;
    assert_eq!(proxy.stats().to_server.sent, before.to_server.sent);

    proxy.heal();
    assert_eq!(client.line().await.unwrap(), "re:during");
    assert_eq!(late.line().await.unwrap(), "re:new");
    let mut log = server.log.subscribe();
    within(log.wait_for(|log| log.iter().any(|line| line == "FIN"))).await.unwrap();
}

#[tokio::test]
async fn a_black_hole_swallows_the_end_of_the_server() {
    let (redis, proxy) = redis();
    let mut client = Client::connect(&proxy).await;
    client.send(&resp(&["PING"])).await;
    assert_eq!(client.line().await.unwrap(), "+PONG");
    proxy.set(Fault::BlackHole);
    redis.kill();
    let late = Client::connect(&proxy).await;
    within(proxy.until(|stats| stats.connections == 2)).await;
    assert!(client.hears_nothing() && late.hears_nothing());
    proxy.heal();
    assert!(!client.line().await.is_ok_and(|line| !line.is_empty()), "now it hears of the end");
}

#[tokio::test]
async fn a_black_hole_can_be_for_one_connection() {
    let (_server, proxy) = line_server().await;
    let mut first = Client::connect(&proxy).await;
    first.ask("a").await;
    let mut second = Client::connect(&proxy).await;
    second.ask("b").await;
    proxy.set_for(0, Fault::BlackHole);
    first.send("c\n").await;
    assert_eq!(second.ask("d").await, "re:d");
    assert!(first.hears_nothing());
    proxy.heal();
    assert_eq!(first.line().await.unwrap(), "re:c");
}

#[tokio::test]
async fn spared_clients_feel_no_fault_and_others_do() {
    let (server, proxy) = line_server().await;
    let spared = Ipv4Addr::new(127, 0, 0, 77);
    // One that is there already, and one that comes later.
    let mut early = Client::connect_from(spared, &proxy).await;
    assert_eq!(early.ask("a").await, "re:a");
    proxy.spare(spared.into());
    let mut other = Client::connect(&proxy).await;
    assert_eq!(other.ask("b").await, "re:b");
    proxy.set(Fault::BlackHole);
    other.send("lost\n").await;
    let mut late = Client::connect_from(spared, &proxy).await;
    assert_eq!((early.ask("c").await, late.ask("d").await), ("re:c".into(), "re:d".into()));
    within(proxy.reset_connections()).await;
    other.is_reset().await;
    proxy.set(Fault::Refuse);
    is_reset_at_once(&proxy).await;
    let mut last = Client::connect_from(spared, &proxy).await;
    assert_eq!((early.ask("e").await, last.ask("f").await), ("re:e".into(), "re:f".into()));
    assert_eq!(late.ask("g").await, "re:g");
    assert!(!server.got().iter().any(|line| line == "lost"));
}

#[tokio::test]
async fn requests_can_be_lost_alone() {
    let (server, proxy) = line_server().await;
    let mut client = Client::connect(&proxy).await;
    client.ask("before").await;
    proxy.set(Fault::Lose(Direction::ToServer));
    let received = proxy.stats().to_server.received;
    client.send("during\n").await;
    within(proxy.until(|stats| stats.to_server.received > received)).await;
    assert_eq!(server.got(), ["connected", "before"]);
    proxy.heal();
    assert_eq!(client.line().await.unwrap(), "re:during");
}

#[tokio::test]
async fn answers_can_be_lost_alone() {
    let (server, proxy) = line_server().await;
    let mut client = Client::connect(&proxy).await;
    client.ask("before").await;
    proxy.set(Fault::Lose(Direction::ToClient));
    let received = proxy.stats().to_client.received;
    client.send("during\n").await;
    server.gets(&["connected", "before", "during"]).await;
    within(proxy.until(|stats| stats.to_client.received > received)).await;
    assert!(client.hears_nothing());
    proxy.heal();
    assert_eq!(client.line().await.unwrap(), "re:during");
}

#[tokio::test]
async fn refusal_resets_new_connections_and_leaves_live_ones() {
    let (server, proxy) = line_server().await;
    let mut live = Client::connect(&proxy).await;
    live.ask("one").await;
    proxy.set(Fault::Refuse);
    is_reset_at_once(&proxy).await;
    assert_eq!(live.ask("two").await, "re:two");
    proxy.heal();
    assert_eq!(Client::connect(&proxy).await.ask("three").await, "re:three");
    assert_eq!(proxy.stats().refused, 1);
    let connected = server.got().iter().filter(|line| *line == "connected").count();
    assert_eq!(connected, 2, "the server never saw the refused one");
}

#[tokio::test]
async fn a_reset_reaches_both_sides_without_a_fin() {
    let (server, proxy) = line_server().await;
    let mut client = Client::connect(&proxy).await;
    client.ask("one").await;
    within(proxy.reset_connections()).await;
    assert_eq!(proxy.stats().live, 0);
    client.is_reset().await;
    server.gets(&["connected", "one", "RST"]).await;
    assert_eq!(Client::connect(&proxy).await.ask("two").await, "re:two");
}

#[tokio::test]
async fn a_reset_can_be_for_one_connection_and_works_in_a_black_hole() {
    let (_server, proxy) = line_server().await;
    let mut first = Client::connect(&proxy).await;
    first.ask("a").await;
    proxy.set(Fault::BlackHole);
    let mut second = Client::connect(&proxy).await;
    within(proxy.until(|stats| stats.live == 2)).await;
    within(proxy.reset_connection(1)).await;
    second.is_reset().await;
    assert!(first.hears_nothing());
    proxy.heal();
    assert_eq!(first.ask("b").await, "re:b");
}

#[tokio::test]
async fn without_a_server_clients_are_reset() {
    // Reserved by this test, so that no other server listens on it.
    let nobody = TcpSocket::new_v4().unwrap();
    nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let proxy = Proxy::start(nobody.local_addr().unwrap()).unwrap();
    is_reset_at_once(&proxy).await;
}

#[tokio::test]
async fn a_held_request_arrives_after_its_client_has_gone() {
    let (redis, proxy) = redis();
    for leave in [drop, Client::reset] {
        let mut held = proxy.hold(Match::on("SET"));
        let mut client = Client::connect(&proxy).await;
        client.send(&resp(&["PING"])).await;
        assert_eq!(client.line().await.unwrap(), "+PONG");
        client.send(&resp(&["SET", "late", "1"])).await;
        within(held.caught()).await.unwrap();
        leave(client);
        assert_eq!(redis.command(&["GET", "late"]), Reply::Nil);
        within(held.deliver()).await.unwrap();
        within(held.answered()).await.unwrap();
        assert_eq!(redis.command(&["GET", "late"]).text(), "1");
        assert_eq!(redis.command(&["DEL", "late"]), Reply::Integer(1));
        within(proxy.until(|stats| stats.live == 0)).await;
    }
}

#[tokio::test]
async fn bytes_after_a_held_request_wait_behind_it() {
    let (server, proxy) = line_server().await;
    let mut held = proxy.hold("two");
    let mut client = Client::connect(&proxy).await;
    client.send("one\ntwo\nthree\n").await;
    within(held.caught()).await.unwrap();
    assert_eq!(client.line().await.unwrap(), "re:one");
    client.send("four\n").await;
    within(proxy.until(|stats| stats.to_server.received == 19)).await;
    assert_eq!(server.got(), ["connected", "one"]);
    within(held.deliver()).await.unwrap();
    server.gets(&["connected", "one", "two", "three", "four"]).await;
    assert_eq!(client.line().await.unwrap(), "re:two");
}

#[tokio::test]
async fn a_held_request_is_overtaken_on_another_connection() {
    let (server, proxy) = line_server().await;
    // The whole request: not even its last byte may get through.
    let mut held = proxy.hold("renew\n");
    let mut first = Client::connect(&proxy).await;
    first.send("renew\n").await;
    within(held.caught()).await.unwrap();
    let mut second = Client::connect(&proxy).await;
    second.ask("release").await;
    within(held.deliver()).await.unwrap();
    assert_eq!(first.line().await.unwrap(), "re:renew");
    server.gets(&["connected", "connected", "release", "renew"]).await;
}

#[tokio::test]
async fn a_delivery_to_a_dead_connection_fails() {
    let (redis, proxy) = redis();
    let mut held = proxy.hold("SET");
    let mut client = Client::connect(&proxy).await;
    client.send(&resp(&["SET", "late", "1"])).await;
    within(held.caught()).await.unwrap();
    within(proxy.reset_connections()).await;
    assert!(within(held.deliver()).await.is_err());
    assert_eq!(redis.command(&["GET", "late"]), Reply::Nil);
}

#[tokio::test]
async fn an_abandoned_held_request_takes_its_connection_along() {
    let (server, proxy) = line_server().await;
    let mut held = proxy.hold("one");
    let mut client = Client::connect(&proxy).await;
    client.send("one\n").await;
    within(held.caught()).await.unwrap();
    drop(held);
    client.is_reset().await;
    assert!(!server.got().contains(&"one".to_owned()));
}

#[tokio::test]
async fn a_delay_is_latency_and_not_a_rate() {
    const EACH_WAY: Duration = Duration::from_millis(250);
    const LINES: u32 = 40;
    let (_server, proxy) = line_server().await;
    let mut client = Client::connect(&proxy).await;
    client.ask("warm").await;
    proxy.set(Fault::delay(EACH_WAY));
    let start = Moment::now();
    for i in 0..LINES {
        let received = proxy.stats().to_server.received;
        client.send(&format!("line {i}\n")).await;
        within(proxy.until(|stats| stats.to_server.received > received)).await;
    }
    for i in 0..LINES {
        assert_eq!(client.line().await.unwrap(), format!("re:line {i}"));
        assert!(Moment::now().saturating_since(start) >= 2 * EACH_WAY, "not before both delays");
    }
    let took = Moment::now().saturating_since(start);
    assert!(took < LINES * EACH_WAY / 2, "{LINES} lines were under way at once, not in {took:?}");
}

#[tokio::test]
async fn a_delay_can_be_for_one_direction_and_holds_back_the_fin() {
    const DELAY: Duration = Duration::from_millis(100);
    let (server, proxy) = line_server().await;
    let mut client = Client::connect(&proxy).await;
    client.ask("warm").await;
    proxy.set(Fault::Delay { to_server: DELAY, to_client: Duration::ZERO });
    let start = Moment::now();
    client.send("last\n").await;
    within(client.0.shutdown()).await.unwrap();
    assert_eq!(client.line().await.unwrap(), "re:last");
    assert_eq!(client.line().await.unwrap(), "", "the FIN comes after the answer");
    assert!(Moment::now().saturating_since(start) >= DELAY);
    server.gets(&["connected", "warm", "last", "FIN"]).await;
}

#[tokio::test]
async fn a_trickle_is_slow_and_complete() {
    const EVERY: Duration = Duration::from_millis(5);
    let (server, proxy) = line_server().await;
    proxy.set(Fault::Trickle { bytes: 4, every: EVERY });
    let mut client = Client::connect(&proxy).await;
    let line = "0123456789".repeat(4);
    let start = Moment::now();
    assert_eq!(client.ask(&line).await, format!("re:{line}"));
    let pauses = 41_u32.div_ceil(4) - 1 + 44_u32.div_ceil(4) - 1;
    assert!(Moment::now().saturating_since(start) >= EVERY * pauses);
    assert_eq!(proxy.stats().to_server.writes, 11);
    server.gets(&["connected", &line]).await;
}

#[tokio::test]
async fn slices_are_single_bytes() {
    let (redis, proxy) = redis();
    proxy.set(Fault::Slice);
    let mut client = Client::connect(&proxy).await;
    client.send(&resp(&["SET", "k", "value"])).await;
    assert_eq!(client.line().await.unwrap(), "+OK");
    assert_eq!(redis.command(&["GET", "k"]).text(), "value");
    let stats = proxy.stats();
    assert_eq!(stats.to_server.writes, stats.to_server.sent);
    assert_eq!((stats.to_client.writes, stats.to_client.sent), (5, 5));
}

#[tokio::test]
async fn half_closed_towards_the_client() {
    let (server, proxy) = line_server().await;
    let mut client = Client::connect(&proxy).await;
    client.ask("one").await;
    proxy.half_close(Direction::ToClient);
    assert_eq!(client.line().await.unwrap(), "", "a FIN");
    client.send("two\n").await;
    server.gets(&["connected", "one", "two"]).await;
    drop(client);
    server.gets(&["connected", "one", "two", "FIN"]).await;
}

#[tokio::test]
async fn half_closed_towards_the_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap()).unwrap();
    let mut client = Client::connect(&proxy).await;
    let (mut server, _) = within(listener.accept()).await.unwrap();
    within(proxy.until(|stats| stats.live == 1)).await;
    proxy.half_close(Direction::ToServer);
    assert_eq!(within(server.read(&mut [0])).await.unwrap(), 0, "a FIN");
    within(server.write_all(b"still there\n")).await.unwrap();
    assert_eq!(client.line().await.unwrap(), "still there");
}

#[tokio::test]
async fn requests_are_counted() {
    let (_server, proxy) = line_server().await;
    let mut pings = proxy.count("PING");
    let on_second = proxy.count(Match::on("PING").connection(1));
    let mut first = Client::connect(&proxy).await;
    first.ask("PING PING").await;
    let mut second = Client::connect(&proxy).await;
    second.ask("PONG PING").await;
    within(pings.reaches(3)).await.unwrap();
    assert_eq!((pings.seen(), on_second.seen()), (3, 1));
}

#[tokio::test]
async fn several_ways_are_one_network() {
    let (one, proxy) = line_server().await;
    let other = LineServer::start().await;
    let addr = proxy.also(other.addr).unwrap();
    let (mut here, mut there) = (Client::connect(&proxy).await, Client::connect_to(addr).await);
    assert_eq!(
        (here.ask("here").await, there.ask("there").await),
        ("re:here".into(), "re:there".into())
    );
    one.gets(&["connected", "here"]).await;
    other.gets(&["connected", "there"]).await;
    let mut count = proxy.count("lost");
    proxy.set(Fault::BlackHole);
    here.send("lost\n").await;
    there.send("lost\n").await;
    within(count.reaches(2)).await.unwrap();
    assert!(here.hears_nothing() && there.hears_nothing());
    proxy.heal();
    assert_eq!(
        (here.line().await.unwrap(), there.line().await.unwrap()),
        ("re:lost".into(), "re:lost".into())
    );
    assert_eq!((proxy.stats().connections, proxy.stats().live), (2, 2));
    within(proxy.reset_connections()).await;
    here.is_reset().await;
    there.is_reset().await;
    let (at, mut again) = ("127.0.0.2:0".parse().unwrap(), Client::connect_to(addr).await);
    assert_eq!(proxy.also_at(addr, at).unwrap_err().kind(), ErrorKind::AddrInUse);
    assert_eq!(again.ask("again").await, "re:again");
    drop(proxy);
    // A child of another test has the socket as well, until it runs its own program.
    let refused = async {
        while TcpStream::connect(addr).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    within(refused).await;
}

#[tokio::test]
async fn new_connections_lead_where_the_address_has_moved() {
    let ((_one, proxy), (other, _)) = (line_server().await, line_server().await);
    let mut live = Client::connect(&proxy).await;
    assert_eq!(live.ask("here").await, "re:here");
    proxy.repoint(other.addr);
    assert_eq!(live.ask("still").await, "re:still");
    let mut moved = Client::connect(&proxy).await;
    assert_eq!(moved.ask("there").await, "re:there");
    other.gets(&["connected", "there"]).await;
}

#[tokio::test]
async fn answers_are_rewritten_and_requests_are_not() {
    let (server, proxy) = line_server().await;
    proxy.rewrite("127.0.0.1", "127.0.3.1");
    let mut client = Client::connect(&proxy).await;
    assert_eq!(client.ask("127.0.0.1:1 127.0.0.1:2").await, "re:127.0.3.1:1 127.0.3.1:2");
    assert_eq!(client.ask("127.0.0.").await, "re:127.0.0.");
    server.gets(&["connected", "127.0.0.1:1 127.0.0.1:2", "127.0.0."]).await;
}

#[tokio::test]
async fn dropping_the_proxy_ends_everything() {
    let (server, proxy) = line_server().await;
    let mut client = Client::connect(&proxy).await;
    client.ask("one").await;
    let addr = proxy.addr();
    let (hit, mut held) = (proxy.cut_after("never"), proxy.hold("never"));
    drop(proxy);
    assert!(!client.line().await.is_ok_and(|line| !line.is_empty()));
    // A neighbour's server that is just being spawned has inherited the port until it is executed.
    let deadline = Moment::now() + BOUND;
    while within(TcpStream::connect(addr)).await.is_ok() {
        assert!(!deadline.has_passed(), "somebody still listens on {addr}");
        sleep(Duration::from_millis(1)).await;
    }
    assert!(within(hit).await.is_err());
    assert!(within(held.caught()).await.is_err());
    let mut log = server.log.subscribe();
    within(log.wait_for(|log| log.len() == 3)).await.unwrap();
}

/// Checks that a proxy works without a runtime: a harness is made before there is one, and a test
/// may starve its own.
#[test]
fn needs_no_runtime() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = Proxy::start(listener.local_addr().unwrap()).unwrap();
    let mut client = std::net::TcpStream::connect(proxy.addr()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    std::io::Write::write_all(&mut server, b"x").unwrap();
    client.set_read_timeout(Some(BOUND)).unwrap();
    client.read_exact(&mut [0]).unwrap();
}
