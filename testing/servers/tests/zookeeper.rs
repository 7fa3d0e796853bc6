//! ZooKeepers that tests start, alone and as ensembles: they belong to their test and obey it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use lock_conformance::proxy::Fault;
use lock_core::clock::{Moment, sleep};
use test_servers::{KeepData, ZooKeeper, ZooKeeperEnsemble, ZooKeeperOptions};

/// The bound on all waits, for a busy machine.
const BOUND: Duration = Duration::from_secs(60);

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Moment::now() + BOUND;
    while !holds() {
        assert!(!deadline.has_passed(), "within {BOUND:?}: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Opens a session, which is a write, on a connection that is returned.
fn open_session(server: &ZooKeeper) -> TcpStream {
    let mut stream = TcpStream::connect(server.addr()).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    let mut request = vec![0, 0, 0, 44];
    request.extend([0; 12]); // version, last transaction seen
    request.extend(4000_u32.to_be_bytes());
    request.extend([0; 8]); // no session yet
    request.extend(16_u32.to_be_bytes());
    request.extend([0; 16]);
    stream.write_all(&request).unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    assert!(u32::from_be_bytes(length) >= 36, "an answer to a connect request");
    stream
}

/// Returns the last transaction that the server has seen.
fn last_transaction(server: &ZooKeeper) -> u64 {
    let answer = server.word("srvr").unwrap();
    let id = answer.lines().find_map(|line| line.strip_prefix("Zxid: 0x")).unwrap();
    u64::from_str_radix(id, 16).unwrap()
}

#[test]
fn it_serves_and_keeps_the_requested_data() {
    let server = ZooKeeper::start(&ZooKeeperOptions::new().setting("maxClientCnxns", "7"));
    assert_eq!(server.mode().as_deref(), Some("standalone"));
    assert_eq!(server.url(), format!("zookeeper://127.0.0.1:{}", server.addr().port()));
    let conf = server.word("conf").unwrap();
    assert!(conf.contains("tickTime=200\n") && conf.contains("maxClientCnxns=7\n"), "{conf}");

    let _session = open_session(&server);
    let written = last_transaction(&server);
    assert!(written > 0);
    let pid = server.pid();
    server.restart(KeepData::Yes);
    assert_ne!(server.pid(), pid);
    assert!(last_transaction(&server) >= written, "its data stay");
    server.restart(KeepData::No);
    assert_eq!(last_transaction(&server), 0, "its data are gone");
}

#[test]
fn a_stopped_one_serves_late_and_a_killed_one_never() {
    let server = ZooKeeper::start(&ZooKeeperOptions::new());
    server.stop();
    let mut stream = TcpStream::connect(server.addr()).unwrap();
    stream.write_all(b"ruok").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert!(stream.read(&mut [0; 4]).is_err(), "it is stopped");
    server.cont();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"imok");
    server.kill();
    assert!(TcpStream::connect(server.addr()).is_err());
}

#[test]
fn a_bad_setting_fails_with_what_the_server_said() {
    let options = ZooKeeperOptions::new().setting("initLimit", "many");
    let error = ZooKeeper::try_start(&options).unwrap_err().to_string();
    assert!(error.contains("has ended") && error.contains("many"), "{error}");
}

#[tokio::test]
async fn an_ensemble_outlives_its_leader() {
    let ensemble = ZooKeeperEnsemble::start(&ZooKeeperOptions::new());
    assert_eq!(ensemble.url().matches(',').count(), 2);
    let leader = ensemble.leader();
    let _session = open_session(ensemble.member(ensemble.follower()));
    ensemble.member(leader).kill();
    eventually("another one leads", || ensemble.find("leader").is_some()).await;
    assert_ne!(ensemble.leader(), leader);
    ensemble.member(leader).restart(KeepData::Yes);
    eventually("it follows", || ensemble.member(leader).mode().as_deref() == Some("follower"))
        .await;
    assert!(last_transaction(ensemble.member(leader)) > 0);
}

#[tokio::test]
async fn a_follower_can_be_cut_from_its_leader_alone() {
    let options = ZooKeeperOptions::new().links().setting("syncLimit", "5");
    let ensemble = ZooKeeperEnsemble::start(&options);
    let (leader, follower) = (ensemble.leader(), ensemble.follower());
    let link = ensemble.link(follower, leader);
    eventually("the leader's pings go over the link", || link.stats().to_client.received > 0).await;
    link.set(Fault::BlackHole);
    eventually("the follower serves no more", || ensemble.member(follower).mode().is_none()).await;
    assert_eq!(ensemble.member(leader).mode().as_deref(), Some("leader"));
    link.heal();
    eventually("it follows again", || ensemble.member(follower).mode().is_some()).await;
}
