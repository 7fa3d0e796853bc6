//! Servers that tests start: they belong to their test, obey it, and never outlive it.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use lock_core::clock::{Moment, sleep, wall};
use test_servers::{
    Clock, KeepData, Memcached, MemcachedOptions, Persistence, Redis, RedisCluster, RedisOptions,
    Reply, SentinelGroup, Server, Step, TextSession,
};

/// The bound on all waits, for a busy machine.
const BOUND: Duration = Duration::from_secs(30);

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Moment::now() + BOUND;
    while !holds() {
        assert!(!deadline.has_passed(), "within {BOUND:?}: {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the state letter of a process; none if it is gone.
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next())
}

#[test]
fn it_is_ours_and_answers() {
    let redis = Redis::start(RedisOptions::new());
    assert_eq!(redis.command(&["PING"]), Reply::Simple("PONG".into()));
    let info = redis.command(&["INFO", "server"]).text();
    assert!(info.contains(&format!("process_id:{}\r\n", redis.pid())));
    assert_eq!(redis.url(), format!("redis://127.0.0.1:{}", redis.addr().port()));
    let save = redis.command(&["CONFIG", "GET", "save"]).text();
    assert_eq!(save, "save\n");
}

#[test]
fn it_listens_on_a_unix_socket() {
    let redis = Redis::start(RedisOptions::new());
    let mut stream = UnixStream::connect(redis.unix_socket()).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert_eq!(line, "+PONG\r\n");
}

#[test]
fn many_at_once_do_not_get_in_each_others_way() {
    let starting: Vec<_> =
        (0..5).map(|_| std::thread::spawn(|| Redis::start(RedisOptions::new()))).collect();
    // The threads that started them are gone by now; the servers must not be.
    let servers: Vec<_> = starting.into_iter().map(|thread| thread.join().unwrap()).collect();
    for (i, redis) in servers.iter().enumerate() {
        redis.command(&["SET", "mine", &i.to_string()]);
    }
    for (i, redis) in servers.iter().enumerate() {
        assert_eq!(redis.command(&["GET", "mine"]).text(), i.to_string());
    }
}

#[test]
fn replies_of_all_kinds() {
    let redis = Redis::start(RedisOptions::new());
    assert_eq!(redis.command(&["SET", "k", "v"]), Reply::Simple("OK".into()));
    assert_eq!(redis.command(&["GET", "k"]), Reply::Bulk(b"v".to_vec()));
    assert_eq!(redis.command(&["GET", "none"]), Reply::Nil);
    assert_eq!(redis.command(&["INCR", "n"]), Reply::Integer(1));
    assert!(matches!(redis.command(&["INCR", "k"]), Reply::Error(text) if text.starts_with("ERR")));
    let lists = redis.command(&["EVAL", "return {1, {'a', false}, ''}", "0"]);
    let inner = Reply::Array(vec![Reply::Bulk(b"a".to_vec()), Reply::Nil]);
    let expected = vec![Reply::Integer(1), inner, Reply::Bulk(Vec::new())];
    assert_eq!(lists, Reply::Array(expected));
}

#[test]
fn operators_change_data_without_the_clients() {
    let redis = Redis::start(RedisOptions::new().setting("maxmemory", "100mb"));
    let mut victim = redis.connect().unwrap();
    let id = victim.command(&["CLIENT", "ID"]).unwrap().text();
    redis.command(&["SET", "lock", "owner"]);
    assert_eq!(redis.command(&["DEL", "lock"]), Reply::Integer(1));
    assert_eq!(redis.command(&["CONFIG", "GET", "maxmemory"]).text(), "maxmemory\n104857600");
    assert_eq!(redis.command(&["CONFIG", "SET", "maxmemory", "1mb"]).text(), "OK");
    assert_eq!(redis.command(&["ACL", "SETUSER", "ann", "on", ">pw", "+get"]).text(), "OK");
    assert_eq!(redis.command(&["SCRIPT", "FLUSH"]).text(), "OK");
    assert_eq!(redis.command(&["DEBUG", "SLEEP", "0"]).text(), "OK");
    assert_eq!(redis.command(&["CLIENT", "KILL", "ID", &id]), Reply::Integer(1));
    assert!(victim.command(&["PING"]).is_err());
}

#[test]
fn a_password_is_asked_for_and_given() {
    let redis = Redis::start(RedisOptions::new().password("sesame"));
    assert_eq!(redis.command(&["PING"]).text(), "PONG");
    assert_eq!(redis.url(), format!("redis://:sesame@{}", redis.addr()));
    let mut stream = TcpStream::connect(redis.addr()).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert!(line.starts_with("-NOAUTH"), "{line}");
}

#[test]
fn a_stopped_one_keeps_its_connections_and_serves_late() {
    let redis = Redis::start(RedisOptions::new());
    let mut stream = TcpStream::connect(redis.addr()).unwrap();
    stream.set_read_timeout(Some(BOUND)).unwrap();
    for _ in 0..3 {
        redis.stop();
        assert_eq!(state(redis.pid()), Some('T'), "stopped when `stop` returns");
        redis.stop();
        stream.write_all(b"PING\r\n").unwrap();
        stream.set_nonblocking(true).unwrap();
        let silent = std::io::Read::read(&mut stream, &mut [0]).unwrap_err();
        assert_eq!(silent.kind(), ErrorKind::WouldBlock);
        stream.set_nonblocking(false).unwrap();
        redis.cont();
        let mut answer = [0; 7];
        std::io::Read::read_exact(&mut stream, &mut answer).unwrap();
        assert_eq!(&answer, b"+PONG\r\n");
    }
}

#[test]
fn a_killed_one_is_gone_and_comes_back_on_its_port() {
    let redis = Redis::start(RedisOptions::new());
    let (addr, pid) = (redis.addr(), redis.pid());
    redis.command(&["SET", "k", "v"]);
    redis.stop();
    redis.kill();
    assert_eq!(state(pid), None, "waited for, and no zombie");
    assert_eq!(redis.connect().unwrap_err().kind(), ErrorKind::ConnectionRefused);
    redis.restart(KeepData::Yes);
    assert_eq!(redis.addr(), addr);
    assert_ne!(redis.pid(), pid);
    assert_eq!(redis.command(&["GET", "k"]), Reply::Nil, "nothing was written to disk");
}

#[test]
fn an_append_only_file_survives_a_kill_unless_it_is_thrown_away() {
    let redis = Redis::start(RedisOptions::new().persistence(Persistence::Aof));
    redis.command(&["SET", "k", "v"]);
    redis.restart(KeepData::Yes);
    assert_eq!(redis.command(&["GET", "k"]).text(), "v");
    redis.restart(KeepData::No);
    assert_eq!(redis.command(&["GET", "k"]), Reply::Nil);
}

#[test]
fn the_last_saved_data_come_back() {
    let redis = Redis::start(RedisOptions::new());
    redis.command(&["SET", "k", "saved"]);
    assert_eq!(redis.command(&["SAVE"]).text(), "OK");
    redis.command(&["SET", "k", "later"]);
    redis.restart(KeepData::Yes);
    assert_eq!(redis.command(&["GET", "k"]).text(), "saved");
}

#[test]
fn a_cut_tail_of_the_append_only_file_is_forgotten() {
    let redis = Redis::start(RedisOptions::new().persistence(Persistence::Aof));
    redis.command(&["SET", "k", "kept"]);
    let written = redis.aof_len();
    redis.command(&["SET", "k", "lost"]);
    assert!(redis.aof_len() > written);
    redis.kill();
    redis.truncate_aof(written);
    redis.restart(KeepData::Yes);
    assert_eq!(redis.command(&["GET", "k"]).text(), "kept");
    // In the middle of a command, which is lost.
    redis.command(&["SET", "k", "half"]);
    redis.kill();
    redis.truncate_aof(redis.aof_len() - 1);
    redis.restart(KeepData::Yes);
    assert_eq!(redis.command(&["GET", "k"]).text(), "kept");
}

/// Returns the server's time, in milliseconds since 1970.
fn time(redis: &Redis) -> i64 {
    let reply = redis.command(&["EVAL", "return {redis.call('TIME')[1]}", "0"]);
    let in_script: i64 = reply.text().parse().unwrap();
    let time = redis.command(&["TIME"]).text();
    let (secs, micros) = time.split_once('\n').unwrap();
    let (secs, micros): (i64, i64) = (secs.parse().unwrap(), micros.parse().unwrap());
    assert!((in_script..in_script + 10).contains(&secs), "scripts go by the same clock");
    secs * 1000 + micros / 1000
}

fn true_time() -> i64 {
    i64::try_from(wall().as_millis()).unwrap()
}

#[test]
fn its_clock_can_be_stepped_and_leases_go_by_it() {
    const HOUR: Duration = Duration::from_secs(3600);
    let redis = Redis::start(RedisOptions::new().clock().persistence(Persistence::Aof));
    let ahead = || time(&redis) - true_time();
    let pttl = || -> i64 { redis.command(&["PTTL", "k"]).text().parse().unwrap() };
    // Within half a minute: the machine may be busy between two readings.
    let near = |value: i64, secs: i64| (value - secs * 1000).abs() < 30_000;
    redis.command(&["SET", "k", "v", "PX", "7200000"]);
    assert!(near(ahead(), 0) && near(pttl(), 7200), "it is right at first");
    redis.step_clock(Step::Forward(HOUR));
    assert!(near(ahead(), 3600) && near(pttl(), 3600));
    redis.step_clock(Step::Back(2 * HOUR));
    assert!(near(ahead(), -3600) && near(pttl(), 3 * 3600));
    redis.restart(KeepData::Yes);
    assert!(near(ahead(), -3600) && near(pttl(), 3 * 3600), "it goes on through a restart");
    redis.step_clock(Step::Forward(4 * HOUR + HOUR / 60));
    assert_eq!(redis.command(&["GET", "k"]), Reply::Nil);
    redis.step_clock(Step::Back(3 * HOUR + HOUR / 60));
    assert!(near(ahead(), 0));
    let other = Redis::start(RedisOptions::new().clock());
    assert!(near(time(&other) - true_time(), 0), "each has its own");
}

#[tokio::test]
async fn its_clock_can_run_fast_and_slowly() {
    let redis = Redis::start(RedisOptions::new().clock());
    for thousandths in [1000, -500] {
        let before = time(&redis) - true_time();
        let earliest = true_time();
        redis.run_clock_too_fast_by(thousandths);
        let latest = true_time();
        eventually("a while has passed", || true_time() > latest + 1000).await;
        let at_least = true_time() - latest;
        redis.run_clock_too_fast_by(0);
        let at_most = true_time() - earliest;
        for _ in 0..2 {
            let gained = time(&redis) - true_time() - before;
            let bounds = [at_least, at_most].map(|ms| ms * i64::from(thousandths) / 1000);
            // The two clocks are not read at the same time.
            let range = bounds[0].min(bounds[1]) - 200..=bounds[0].max(bounds[1]) + 200;
            assert!(range.contains(&gained), "{gained} ms gained, and not {range:?}");
            // The accumulated difference stays.
            let now = true_time();
            eventually("a while has passed", || true_time() > now + 500).await;
        }
    }
}

/// Checks that it counts seconds by its monotonic clock, from its wall clock's time at the start.
#[tokio::test]
async fn a_memcached_has_a_clock_of_each_kind() {
    const HOUR: Duration = Duration::from_secs(3600);
    let server = Memcached::start(MemcachedOptions::new().clocks());
    let ahead = || server.stat("time").parse::<i64>().unwrap() - true_time() / 1000;
    let near = |hours: i64| (ahead() - hours * 3600).abs() < 30;
    assert!(near(0), "it is right at first");
    server.wall_clock().step(Step::Forward(2 * HOUR));
    server.monotonic_clock().step(Step::Forward(HOUR));
    eventually("it counts on", || near(1)).await;
    server.restart();
    assert!(near(2), "{} s ahead", ahead());
}

#[test]
fn any_process_can_be_given_a_clock() {
    let clock = Clock::new().unwrap();
    clock.step(Step::Back(Duration::from_secs(86_400)));
    let mut date = Command::new("date");
    date.arg("+%s");
    clock.give_to(&mut date);
    let said = String::from_utf8(date.output().unwrap().stdout).unwrap();
    let shown: i64 = said.trim().parse().unwrap();
    assert!((shown - true_time() / 1000 + 86_400).abs() < 30, "{said}");
}

#[test]
fn dropping_it_leaves_nothing() {
    let redis = Redis::start(RedisOptions::new().persistence(Persistence::Aof));
    let (addr, pid, directory) = (redis.addr(), redis.pid(), redis.directory().to_owned());
    drop(redis);
    assert_eq!(state(pid), None);
    assert!(TcpStream::connect(addr).is_err());
    assert!(!directory.exists());
}

#[test]
fn a_bad_setting_fails_with_what_the_server_said() {
    let error = Redis::try_start(RedisOptions::new().setting("no-such-thing", "1")).unwrap_err();
    assert!(error.to_string().contains("has ended"), "{error}");
    assert!(error.to_string().contains("no-such-thing"), "{error}");
}

#[test]
fn a_missing_program_fails_with_the_way_to_install_it() {
    let error =
        Server::start("no-such-server", "its-package", [""; 0], Path::new("/")).unwrap_err();
    let hint = "no-such-server is missing: run ./test, or apt-get install its-package";
    assert_eq!(error.to_string(), hint);
}

#[test]
fn a_server_that_is_never_ready_fails_at_the_bound() {
    let server = Server::start("sleep", "coreutils", ["600"], Path::new("/")).unwrap();
    let error = server.wait_until(Duration::from_millis(50), || false).unwrap_err();
    assert!(error.to_string().contains("was not ready within 50ms"), "{error}");
}

/// Starts a server, prints its data, and waits to be killed. The next test runs it in a process of
/// its own.
#[test]
fn helper_that_is_killed() {
    if std::env::var_os("SERVERS_HELPER").is_none() {
        return;
    }
    let redis = Redis::start(RedisOptions::new());
    eprintln!("{} {} {}", redis.pid(), redis.addr(), redis.directory().display());
    loop {
        std::thread::park();
    }
}

#[tokio::test]
async fn a_server_dies_with_a_test_process_that_is_killed() {
    let mut helper = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "helper_that_is_killed", "--nocapture"])
        .env("SERVERS_HELPER", "1")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(helper.stderr.take().unwrap()).lines().map_while(Result::ok);
    let said: Vec<String> = { lines }
        .map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>())
        .find(|words| words.len() == 3 && words[0].parse::<u32>().is_ok())
        .expect("the helper says its server");
    let (pid, addr): (u32, &str) = (said[0].parse().unwrap(), &said[1]);
    TcpStream::connect(addr).expect("it is up");
    helper.kill().unwrap();
    helper.wait().unwrap();
    eventually("the port is closed", || TcpStream::connect(addr).is_err()).await;
    // The new parent may take its time to reap it.
    eventually("the process is gone", || matches!(state(pid), None | Some('Z'))).await;
    // The one task that the killed process could not do itself.
    std::fs::remove_dir_all(&said[2]).unwrap();
}

#[test]
fn memcached_is_ours_and_obeys() {
    let server = Memcached::start(MemcachedOptions::new());
    assert_eq!(server.stat("pid"), server.pid().to_string());
    assert_eq!(server.url(), format!("memcache://127.0.0.1:{}", server.addr().port()));
    let mut session = server.connect().unwrap();
    assert_eq!(session.command("set n 0 0 2\r\nab").unwrap(), "STORED");
    assert_eq!(session.command("mg n v").unwrap(), "VA 2\r\nab");
    assert_eq!(session.command("mg m v").unwrap(), "EN");
    server.stop();
    assert_eq!(state(server.pid()), Some('T'));
    server.cont();
    assert_eq!(session.command("mg n v").unwrap(), "VA 2\r\nab");
    let before = server.pid();
    server.kill();
    assert_eq!((state(before), server.connect().is_err()), (None, true));
    server.restart();
    assert_ne!(server.pid(), before);
    assert_eq!(server.command("mg n v"), "EN", "it keeps nothing");
    let pid = server.pid();
    drop(server);
    assert_eq!(state(pid), None);
}

#[test]
fn memcached_has_the_settings_it_was_given() {
    let settings = |options| Memcached::start(options).command("stats settings");
    let plain = settings(MemcachedOptions::new());
    assert!(plain.contains("STAT evictions off\r\n") && plain.contains("STAT cas_enabled yes\r\n"));
    let other = settings(MemcachedOptions::new().evicting().arg("-C"));
    assert!(other.contains("STAT evictions on\r\n") && other.contains("STAT cas_enabled no\r\n"));
    let asking = Memcached::start(MemcachedOptions::new().credentials("u", "secret"));
    assert_eq!(asking.command("mg n"), "EN", "the operator says who it is");
    let mut stranger = TextSession::connect(asking.addr()).unwrap();
    assert_eq!(stranger.command("mg n").unwrap(), "CLIENT_ERROR unauthenticated");
    assert!(asking.url().starts_with("memcache://u:secret@127.0.0.1:"));
}

#[test]
fn sentinels_replace_a_primary_that_is_gone_and_bring_it_back_as_a_replica() {
    let group = SentinelGroup::start(RedisOptions::new());
    assert_eq!(group.primary(), 0);
    group.server(0).command(&["SET", "k", "1"]);
    group.wait_until_named(0);
    group.sentinel(0).kill();
    group.server(0).kill();
    group.wait_until_named(1);
    assert_eq!(group.primary(), 1);
    group.server(0).restart(KeepData::No);
    group.wait_until_replica(0);
    group.sentinel(0).restart();
    group.wait_until_named(1);
}

#[tokio::test]
async fn unreplicated_writes_are_lost_and_two_servers_may_act_as_primary() {
    let group = SentinelGroup::start(RedisOptions::new());
    group.cut_from_replica(0);
    eventually("the line is cut", || !group.is_replicated()).await;
    group.server(0).command(&["SET", "k", "1"]);
    group.hide_from_sentinels(0);
    group.wait_until_named(1);
    let is_primary = |n: usize| group.server(n).command(&["ROLE"]).text().starts_with("master");
    assert!(is_primary(0) && is_primary(1), "the old primary was not notified");
    assert_eq!(group.server(1).command(&["GET", "k"]), Reply::Nil);
    group.heal(0);
    group.wait_until_replica(0);
    assert_eq!(group.server(0).command(&["GET", "k"]), Reply::Nil, "it has what the new one has");
}

#[tokio::test]
async fn members_of_a_cluster_share_the_slots_and_replicas_take_over() {
    let options = RedisOptions::new().setting("cluster-node-timeout", "1000");
    let cluster = RedisCluster::start(&options, 3, 1);
    assert_eq!((cluster.len(), cluster.slot("123456789")), (6, 0x31C3));
    let (home, slot) = (cluster.home("a"), cluster.slot("a"));
    let other = (home + 1) % 3;
    let set = ["SET", "a", "1", "PX", "60000"];
    assert!(cluster.member(other).command(&set).text().starts_with(&format!("MOVED {slot} ")));
    assert_eq!(cluster.member(home).command(&set).text(), "OK");
    cluster.move_slot(slot, home, other);
    assert_eq!(cluster.home("a"), other);
    assert_eq!(cluster.member(other).command(&["GET", "a"]).text(), "1");
    assert!(cluster.url().starts_with("redis+cluster://127.0.0.1:"));
    cluster.member(other).kill();
    eventually("the replica takes over", || cluster.try_home("a") == Some(3 + other)).await;
}
