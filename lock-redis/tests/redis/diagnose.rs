//! The findings about servers, and about servers that are set up wrongly.

use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use lock_conformance::proxy::Fault;
use lock_core::diagnosis::{Finding, Severity};
use lock_redis::Config;
use test_servers::{
    Persistence, Redis as SingleServer, RedisCluster, RedisOptions, SentinelGroup, Step,
};
use tokio::task::JoinSet;

use crate::least_rights::{LEAST_RIGHTS, rights_to_delete};
use crate::support::{SOON, Server, eventually};

const PASSWORD: &str = "hunter2secret";

/// All checks of one server, in their order.
const CHECKS: [&str; 16] = [
    "connection",
    "version",
    "mode",
    "role",
    "eviction",
    "persistence",
    "replicas",
    "connections",
    "idle",
    "rights",
    "scripts",
    "channels",
    "tracking",
    "foreign types",
    "round trip",
    "clock",
];

async fn diagnose(url: &str) -> Vec<Finding> {
    let config = Config::new(url).unwrap();
    let findings = lock_redis::diagnose(&config).await;
    for finding in &findings {
        let shown = format!("{finding} {finding:?}");
        assert!(!shown.contains(PASSWORD), "{shown}");
        assert!(finding.severity == Severity::Ok || finding.text.len() > 10, "{shown}");
    }
    findings
}

/// Returns the finding of a check: the worst one of all servers.
#[track_caller]
fn of<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
    let of_it = findings.iter().filter(|finding| finding.check == check);
    let worst = of_it.max_by_key(|finding| finding.severity);
    worst.unwrap_or_else(|| panic!("no finding about {check}: {findings:#?}"))
}

#[track_caller]
fn is(findings: &[Finding], check: &str, severity: Severity, words: &[&str]) {
    let finding = of(findings, check);
    assert_eq!(finding.severity, severity, "{finding}");
    for word in words {
        assert!(finding.to_string().contains(word), "{word:?} in: {finding}");
    }
}

#[track_caller]
fn is_unseen(findings: &[Finding], check: &str, words: &[&str]) {
    is(findings, check, Severity::Warning, &[&["could not be seen"], words].concat());
}

/// Requires that no other checks than these have found something.
#[track_caller]
fn else_ok(findings: &[Finding], checks: &[&str]) {
    let bad = findings.iter().filter(|finding| finding.severity > Severity::Ok);
    let others: Vec<_> = bad.filter(|finding| !checks.contains(&finding.check)).collect();
    assert!(others.is_empty(), "{others:#?}");
}

fn durable() -> RedisOptions {
    RedisOptions::new().persistence(Persistence::Aof).setting("appendfsync", "always")
}

/// Returns the keys that a server has: their number, and their names.
fn keys(server: &SingleServer) -> (String, String) {
    let mut session = server.connect().unwrap();
    let mut answer = |words: &[&str]| session.command(words).unwrap().text();
    (answer(&["DBSIZE"]), answer(&["SCAN", "0", "COUNT", "1000"]))
}

#[tokio::test]
async fn a_good_server_is_all_ok_and_keeps_its_keys() {
    let server = Server::with_options(durable().setting("maxmemory", "100mb"));
    for name in ["a", "app:n", "{app:n}%token"] {
        let _: String = server.run(&format!("SET {name} 1"));
    }
    let before = keys(&server);
    for options in ["", "?prefix=app:", "?order=any"] {
        let findings = diagnose(&format!("{}{options}", server.url())).await;
        else_ok(&findings, &[]);
        let checks: Vec<_> = findings.iter().map(|finding| finding.check).collect();
        assert_eq!(checks, CHECKS);
        assert!(findings.iter().all(|finding| finding.server.is_none()), "{findings:#?}");
        assert_eq!(keys(&server), before);
    }
}

#[tokio::test]
async fn the_least_rights_hide_some_checks_and_nothing_is_missing() {
    let server = Server::with_options(durable());
    set_user(&server, &format!("{} {}", LEAST_RIGHTS[0], rights_to_delete()));
    let before = keys(&server);
    let findings = diagnose(&url(&server)).await;
    // This user cannot rehearse its commands, so they were tried.
    assert_eq!(keys(&server), before);
    for hidden in ["persistence", "idle"] {
        is_unseen(&findings, hidden, &["CONFIG GET", "+config|get"]);
    }
    is_unseen(&findings, "foreign types", &["+scan"]);
    else_ok(&findings, &["persistence", "idle", "foreign types"]);
    set_user(&server, &format!("{} -info", LEAST_RIGHTS[0]));
    let findings = diagnose(&url(&server)).await;
    for hidden in ["version", "mode", "role", "eviction", "persistence", "replicas", "connections"]
    {
        is_unseen(&findings, hidden, &["INFO", "+info"]);
    }
    is(&findings, "rights", Severity::Warning, &["+info"]);
}

fn set_user(server: &Server, rights: &str) {
    set_rights(server, "locks", rights);
}

fn set_rights(server: &Server, user: &str, rights: &str) {
    let rule = format!("ACL SETUSER {user} reset on >{PASSWORD} {rights}");
    let _: String = server.run(&rule.split_whitespace().collect::<Vec<_>>().join(" "));
}

fn url(server: &Server) -> String {
    url_of(server, "locks")
}

fn url_of(server: &Server, user: &str) -> String {
    format!("redis://{user}:{PASSWORD}@127.0.0.1:{}?prefix=app:", server.port())
}

/// Returns the least rights but for this one.
fn without(right: &str) -> String {
    LEAST_RIGHTS[0].split_whitespace().filter(|word| *word != right).collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn each_missing_right_is_named_with_the_line_that_grants_it() {
    let server = Arc::new(Server::with_options(durable()));
    let mut checking = JoinSet::new();
    for (number, right) in
        ["+evalsha", "+script|load", "+zadd", "+subscribe", "+client|tracking", "&app:*", "~{app:*"]
            .into_iter()
            .enumerate()
    {
        // With the right to ask about rights, and without.
        for (kind, may_ask) in [("asks", "+acl|whoami +acl|dryrun"), ("tries", "")] {
            let user = format!("{kind}{number}");
            let rights = format!("{} {} {may_ask}", without(right), rights_to_delete());
            checking.spawn(a_missing_right_is_named(Arc::clone(&server), user, rights, right));
        }
    }
    checking.join_all().await;
}

async fn a_missing_right_is_named(
    server: Arc<Server>,
    user: String,
    rights: String,
    right: &'static str,
) {
    set_rights(&server, &user, &rights);
    let findings = diagnose(&url_of(&server, &user)).await;
    let (severity, line) = match right {
        "+client|tracking" => (Severity::Warning, right),
        "~{app:*" => (Severity::Failure, "~app:* ~{app:*"),
        _ => (Severity::Failure, right),
    };
    is(&findings, "rights", severity, &[&format!("ACL SETUSER {user} {line}")]);
    match right {
        "+evalsha" | "+script|load" => {
            is(&findings, "scripts", Severity::Failure, &[&right[1..]]);
        }
        "+zadd" => is(&findings, "scripts", Severity::Failure, &["ZADD"]),
        "+subscribe" | "&app:*" => {
            is(&findings, "channels", Severity::Failure, &["order=any", "&app:*"]);
        }
        "+client|tracking" => is(&findings, "tracking", Severity::Warning, &["poll"]),
        _ => {}
    }
    let line = of(&findings, "rights").remedy.clone().unwrap();
    let _: String = server.run(&line);
    is(&diagnose(&url_of(&server, &user)).await, "rights", Severity::Ok, &[]);
}

#[tokio::test]
async fn a_user_with_keys_of_a_prefix_is_to_name_it() {
    let server = Server::with_options(durable());
    set_user(&server, LEAST_RIGHTS[0]);
    let findings = diagnose(&url(&server).replace("?prefix=app:", "")).await;
    is(&findings, "rights", Severity::Failure, &["every name"]);
    let finding = of(&findings, "rights");
    let remedy = finding.remedy.as_deref().unwrap();
    assert!(remedy.starts_with("add the option prefix to the URL"), "{finding}");
    let rule = remedy.find("~*").expect("the rule for all keys");
    assert!(rule > remedy.find("or, ").unwrap(), "{finding}");
    assert!(!finding.text.contains("~*"), "{finding}");
}

#[tokio::test]
async fn asking_about_rights_is_no_refusal_in_the_log() {
    let server = Server::with_options(durable());
    set_user(
        &server,
        &format!("{} +acl|whoami +acl|dryrun +config|get +scan", without("+getrange")),
    );
    is(&diagnose(&url(&server)).await, "rights", Severity::Failure, &["+getrange"]);
    let log: Vec<HashMap<String, redis::Value>> = server.run("ACL LOG");
    let is_of_script = |entry: &HashMap<String, redis::Value>| {
        entry.get("context") == Some(&redis::Value::BulkString(b"lua".to_vec()))
    };
    assert!(log.iter().all(is_of_script), "{log:#?}");
}

#[tokio::test]
async fn wrong_credentials_are_a_failure_of_the_login() {
    let server = Server::with_options(RedisOptions::new().password(PASSWORD));
    for user in ["", ":wrong@", "locks:wrong@"] {
        let findings = diagnose(&format!("redis://{user}{}", server.addr())).await;
        assert_eq!(findings.len(), 1, "{findings:#?}");
        is(&findings, "login", Severity::Failure, &["password"]);
    }
}

#[tokio::test]
async fn a_dead_port_is_a_failure_of_the_connection() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for url in [format!("redis://{port}"), format!("redis+cluster://{port}")] {
        let findings = diagnose(&url).await;
        assert_eq!(findings.len(), 1, "{findings:#?}");
        is(&findings, "connection", Severity::Failure, &["runs"]);
        assert!(findings[0].remedy.is_some(), "{findings:#?}");
    }
}

#[tokio::test]
async fn a_silent_server_is_a_failure_of_the_connection() {
    let server = Server::start();
    server.stop();
    let findings = diagnose(&server.url()).await;
    is(&findings, "connection", Severity::Failure, &["does not answer", "that the server runs"]);
    server.cont();
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn a_port_without_encryption_is_a_failure_of_the_connection() {
    let server = Server::start();
    let findings = diagnose(&format!("rediss://{}", server.addr())).await;
    is(&findings, "connection", Severity::Failure, &["encrypted connections"]);
    let findings = diagnose("rediss://127.0.0.1?ca=/no/such/file").await;
    is(&findings, "connection", Severity::Failure, &["/no/such/file"]);
    assert_eq!(findings[0].remedy, None, "the server is not the cause");
}

#[tokio::test]
async fn eviction_is_found() {
    let server = Server::with_options(durable().setting("maxmemory", "100mb"));
    for policy in ["allkeys-lru", "volatile-lru", "volatile-ttl"] {
        let _: String = server.run(&format!("CONFIG SET maxmemory-policy {policy}"));
        let findings = diagnose(&server.url()).await;
        is(
            &findings,
            "eviction",
            Severity::Warning,
            &[policy, "set maxmemory-policy to noeviction"],
        );
        else_ok(&findings, &["eviction"]);
    }
    let _: String = server.run("CONFIG SET maxmemory-policy noeviction");
    let _: String = server.run("CONFIG SET maxmemory 1");
    // Scripts do not run at the limit.
    is(&diagnose(&server.url()).await, "eviction", Severity::Warning, &["raise maxmemory"]);
}

#[tokio::test]
async fn what_a_restart_loses_is_found() {
    let server = Server::start();
    let persistence = |words: &'static [&'static str]| {
        let url = server.url();
        async move { is(&diagnose(&url).await, "persistence", Severity::Warning, words) }
    };
    set_user(&server, LEAST_RIGHTS[0]);
    is(&diagnose(&url(&server)).await, "persistence", Severity::Warning, &["perhaps all"]);
    persistence(&["a restart frees all locks"]).await;
    server.command::<String>(&["CONFIG", "SET", "save", "3600 1"]);
    persistence(&["snapshots"]).await;
    let _: String = server.run("CONFIG SET appendonly yes");
    persistence(&["appendfsync is no"]).await;
    let _: String = server.run("CONFIG SET appendfsync everysec");
    persistence(&["everysec", "a second"]).await;
    let _: String = server.run("CONFIG SET appendfsync always");
    is(&diagnose(&server.url()).await, "persistence", Severity::Ok, &[]);
    let _: String = server.run("CONFIG SET no-appendfsync-on-rewrite yes");
    persistence(&["while it rewrites", "set no-appendfsync-on-rewrite to no"]).await;
}

#[tokio::test]
async fn replicas_and_their_number_are_found() {
    let primary = Server::with_options(durable().setting("repl-diskless-sync-delay", "0"));
    let wanted = format!("{}?min_replicas=1", primary.url());
    is(&diagnose(&primary.url()).await, "replicas", Severity::Ok, &["none"]);
    is(
        &diagnose(&wanted).await,
        "replicas",
        Severity::Failure,
        &["online: 0", "min_replicas is 1"],
    );
    let port = primary.port().to_string();
    let replica = Server::with_options(durable());
    let _: String = replica.run(&format!("REPLICAOF 127.0.0.1 {port}"));
    eventually(|| primary.run::<String>("INFO replication").contains("state=online")).await;
    let findings = diagnose(&primary.url()).await;
    is(&findings, "replicas", Severity::Warning, &["online: 1", "min_replicas=1"]);
    else_ok(&findings, &["replicas"]);
    is(&diagnose(&wanted).await, "replicas", Severity::Ok, &[]);
    let too_many = format!("{}?min_replicas=2", primary.url());
    is(&diagnose(&too_many).await, "replicas", Severity::Failure, &["online: 1"]);
    let _: String = primary.run("CONFIG SET min-replicas-to-write 2");
    let findings = diagnose(&primary.url()).await;
    is(&findings, "replicas", Severity::Failure, &["min-replicas-to-write is 2"]);
    let _: String = primary.run("CONFIG SET min-replicas-to-write 0");

    let findings = diagnose(&replica.url()).await;
    is(&findings, "role", Severity::Failure, &[&format!("127.0.0.1:{port}"), "refuses"]);
    is_unseen(&findings, "scripts", &["replica"]);
    let _: String = replica.run("CONFIG SET replica-read-only no");
    is(&diagnose(&replica.url()).await, "role", Severity::Failure, &["writable"]);
}

#[tokio::test]
async fn a_replica_that_lags_is_not_online() {
    let primary = Server::with_options(durable().setting("repl-diskless-sync-delay", "0"));
    let replica = Server::with_options(durable());
    let _: String = replica.run(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    let says = |word: &str| primary.run::<String>("INFO replication").contains(word);
    eventually(|| says("state=online")).await;
    let _: String = primary.run("CONFIG SET min-replicas-max-lag 2");
    replica.stop();
    eventually(|| says("lag=3")).await;
    assert!(says("state=online"));
    let findings = diagnose(&primary.url()).await;
    let words = ["online: 0", "1 more lags by over 2 s", "look at the replicas"];
    is(&findings, "replicas", Severity::Warning, &words);
    let wanted = format!("{}?min_replicas=1", primary.url());
    let words = ["online: 0", "min_replicas is 1"];
    is(&diagnose(&wanted).await, "replicas", Severity::Failure, &words);
    replica.cont();
}

#[tokio::test]
async fn a_limit_of_connections_that_is_near_is_found() {
    let server = Server::with_options(durable().setting("maxclients", "20"));
    is(&diagnose(&server.url()).await, "connections", Severity::Ok, &["of 20"]);
    let others: Vec<_> = (0..16).map(|_| server.connect().unwrap()).collect();
    let words = ["of 20", "raise maxclients"];
    is(&diagnose(&server.url()).await, "connections", Severity::Warning, &words);
    drop(others);
}

#[tokio::test]
async fn refused_connections_are_found() {
    let server = Server::with_options(durable().setting("maxclients", "3"));
    let is_refused = || {
        let mut refused = (0..4).map(|_| server.connect()).collect::<Vec<_>>();
        refused.iter_mut().any(|it| match it {
            Ok(session) => session.command(&["PING"]).is_ok_and(|said| said.text() != "PONG"),
            Err(_) => true,
        })
    };
    eventually(is_refused).await;
    eventually(|| {
        let Ok(mut session) = server.connect() else { return false };
        let set = ["CONFIG", "SET", "maxclients", "1000"];
        session.command(&set).is_ok_and(|said| said.text() == "OK")
    })
    .await;
    let findings = diagnose(&server.url()).await;
    is(&findings, "connections", Severity::Warning, &["refused", "raise maxclients"]);
    else_ok(&findings, &["connections"]);
}

#[tokio::test]
async fn idle_connections_that_are_closed_are_found() {
    let server = Server::with_options(durable().setting("timeout", "300"));
    let findings = diagnose(&server.url()).await;
    is(&findings, "idle", Severity::Warning, &["300 s", "set timeout to 0"]);
    let _: String = server.run("CONFIG SET timeout 0");
    let _: String = server.run("CONFIG SET tcp-keepalive 0");
    is(&diagnose(&server.url()).await, "idle", Severity::Warning, &["tcp-keepalive"]);
    else_ok(&findings, &["idle"]);
}

#[tokio::test]
async fn hidden_commands_are_found() {
    let mut checking = JoinSet::new();
    for (command, order, check, severity, words) in [
        ("HELLO", "", "channels", Severity::Warning, ["RESP3", "race"]),
        ("HELLO", "?order=fifo", "channels", Severity::Failure, ["RESP3", "order=any"]),
        ("HELLO", "", "tracking", Severity::Warning, ["poll", "RESP3"]),
        ("CLIENT", "", "tracking", Severity::Warning, ["poll", "+client|tracking"]),
        ("EVALSHA", "", "scripts", Severity::Failure, ["EVALSHA", ""]),
        ("EVALSHA", "", "rights", Severity::Failure, ["evalsha (hidden", "does not hide"]),
        ("CLIENT", "", "rights", Severity::Warning, ["client|caching (hidden", "poll"]),
        ("SUBSCRIBE", "", "channels", Severity::Failure, ["SUBSCRIBE", "order=any"]),
        ("CONFIG", "", "persistence", Severity::Warning, ["could not be seen", "CONFIG GET"]),
        ("SCAN", "", "foreign types", Severity::Warning, ["could not be seen", "SCAN"]),
        ("TIME", "", "clock", Severity::Warning, ["could not be seen", "TIME"]),
    ] {
        let options = durable().setting("rename-command", command).and("");
        let server = Server::with_options(options);
        checking.spawn(async move {
            let findings = diagnose(&format!("{}{order}", server.url())).await;
            is(&findings, check, severity, &words);
        });
    }
    checking.join_all().await;
}

#[tokio::test]
async fn a_url_for_another_kind_of_servers_is_found() {
    let member = Server::with_options(RedisOptions::new().cluster_member());
    let findings = diagnose(&member.url()).await;
    is(&findings, "mode", Severity::Failure, &["member of a cluster", "redis+cluster://"]);
    let single = Server::start();
    let findings = diagnose(&format!("redis+cluster://{}", single.addr())).await;
    is(&findings, "mode", Severity::Failure, &["no member of a cluster", "redis://"]);
    let sentinel = test_servers::Sentinel::alone(&single);
    let findings = diagnose(&format!("redis://{}", sentinel.addr())).await;
    is(&findings, "mode", Severity::Failure, &["sentinel", "redis+sentinel://"]);
}

#[tokio::test]
async fn wrong_clocks_are_found() {
    let server = Server::with_options(durable().clock());
    is(&diagnose(&server.url()).await, "clock", Severity::Ok, &[]);
    let year = Duration::from_secs(365 * 24 * 3600);
    server.step_clock(Step::Back(year));
    let findings = diagnose(&server.url()).await;
    is(&findings, "clock", Severity::Warning, &["-365 days", "fencing tokens"]);
    else_ok(&findings, &["clock"]);
    server.step_clock(Step::Forward(year + Duration::from_secs(200)));
    is(&diagnose(&server.url()).await, "clock", Severity::Warning, &["+200 s"]);
    server.step_clock(Step::Back(Duration::from_secs(200)));
    server.run_clock_too_fast_by(50);
    is(&diagnose(&server.url()).await, "clock", Severity::Warning, &["% fast"]);
    server.run_clock_too_fast_by(-50);
    is(&diagnose(&server.url()).await, "clock", Severity::Warning, &["% slow"]);
}

#[tokio::test]
async fn a_step_of_the_clock_between_two_readings_is_found() {
    let server = Server::with_options(durable().clock());
    let url = server.url();
    let asking = tokio::spawn(async move { diagnose(&url).await });
    // The first reading.
    eventually(|| server.calls("time") >= 50).await;
    server.step_clock(Step::Forward(Duration::from_secs(30)));
    is(&asking.await.unwrap(), "clock", Severity::Warning, &["was set by +30"]);
}

#[tokio::test]
async fn a_slow_network_hides_no_right_clock() {
    let server = Server::with_options(durable());
    let (network, url) = server.proxied();
    network.set(Fault::delay(Duration::from_millis(20)));
    is(&diagnose(&url).await, "clock", Severity::Ok, &[]);
}

#[tokio::test]
async fn locks_in_other_layouts_are_found() {
    let server = Server::with_options(durable());
    let diagnosed = || async { diagnose(&format!("{}?prefix=app:", server.url())).await };
    // None of these is a lock: other names, another layout, and none that ends.
    let _: u64 = server.run("HSET other:n 8743c9c0-0795-4907-87fd-6c719a6b4586:1 1");
    let _: u64 = server.run("HSET app:user session:1 1");
    let _: u64 = server.run("ZADD app:scores 1 a");
    for key in ["other:n", "app:user"] {
        let _: u64 = server.run(&format!("PEXPIRE {key} 300000"));
    }
    is(&diagnosed().await, "foreign types", Severity::Ok, &["2 keys"]);
    let _: u64 = server.run("HSET app:n 8743c9c0-0795-4907-87fd-6c719a6b4586:1 1");
    let _: u64 = server.run("PEXPIRE app:n 300000");
    let before = keys(&server);
    let words = ["app:n", "a hash", "Redisson", "prefix"];
    is(&diagnosed().await, "foreign types", Severity::Warning, &words);
    assert_eq!(keys(&server), before);
    let _: u64 = server.run("DEL app:n");
    let _: u64 = server.run("PEXPIRE app:scores 300000");
    is(&diagnosed().await, "foreign types", Severity::Warning, &["app:scores", "a sorted set"]);
    // A prefix that would be another pattern.
    let url = format!("{}?prefix=a%5Bp%5Dp:", server.url());
    is(&diagnose(&url).await, "foreign types", Severity::Ok, &["0 keys"]);
    let _: u64 = server.run("ZADD a[p]p:n 1 a");
    is(&diagnose(&url).await, "foreign types", Severity::Ok, &["1 keys"]);
}

#[tokio::test]
async fn queues_of_ours_are_no_foreign_locks() {
    let server = Server::with_options(durable());
    for key in ["{n}%queue", "{n}%procs", "{t}n%:queue"] {
        let _: u64 = server.run(&format!("ZADD {key} 1 a"));
        let _: u64 = server.run(&format!("PEXPIRE {key} 300000"));
    }
    is(&diagnose(&server.url()).await, "foreign types", Severity::Ok, &["3 keys", "all"]);
}

#[tokio::test]
async fn the_sample_of_keys_is_bounded() {
    let server = Server::with_options(durable());
    let fill = "for i = 1, 5000 do redis.call('SET', 'k' .. i, '') end";
    server.command::<redis::Value>(&["EVAL", fill, "0"]);
    is(&diagnose(&server.url()).await, "foreign types", Severity::Ok, &["a sample"]);
    assert_eq!(server.calls("scan"), 10);
}

#[tokio::test]
async fn a_cluster_is_checked_member_by_member() {
    let starting = tokio::task::spawn_blocking(|| {
        let options = durable().setting("repl-diskless-sync-delay", "0");
        RedisCluster::start(&options, 3, 1)
    });
    let cluster = starting.await.unwrap();
    let url = format!("{}?min_replicas=1", cluster.url());
    let findings = diagnose(&url).await;
    else_ok(&findings, &[]);
    for check in CHECKS {
        let servers = findings.iter().filter(|finding| finding.check == check);
        let servers: Vec<_> = servers.filter_map(|finding| finding.server.as_deref()).collect();
        assert_eq!(servers.len(), 3, "{check}: {servers:?}");
    }
    is(&findings, "slots", Severity::Ok, &[]);
    is(&findings, "cluster", Severity::Ok, &[]);
    // A prefix whose locks are all on one member.
    else_ok(&diagnose(&format!("{url}&prefix=%7Bapp%7D:")).await, &[]);

    cluster.member(4).kill();
    let findings = diagnose(&url).await;
    is(&findings, "members", Severity::Warning, &["a member in the URL"]);

    let slot = cluster.slot("n").to_string();
    for member in [0, 1, 2, 3, 5] {
        let reply = cluster.member(member).command(&["CLUSTER", "DELSLOTS", &slot]).text();
        assert!(reply == "OK" || reply.contains("assigned"), "{reply}");
    }
    let findings = diagnose(&url).await;
    is(&findings, "slots", Severity::Failure, &[&format!("{slot}-{slot}"), "--cluster fix"]);
}

#[tokio::test]
async fn a_cluster_without_replicas_or_rights_is_found() {
    let cluster =
        tokio::task::spawn_blocking(|| RedisCluster::start(&durable(), 3, 0)).await.unwrap();
    let findings = diagnose(&cluster.url()).await;
    is(&findings, "replicas", Severity::Warning, &["if it fails", "add a replica"]);
    else_ok(&findings, &["replicas"]);
    // Members do not share users.
    let all = LEAST_RIGHTS[0].replace("+publish +subscribe", "+spublish +ssubscribe");
    for member in 0..3 {
        let rights = if member == 1 { all.replace("+evalsha", "") } else { all.clone() };
        let rule = format!("ACL SETUSER locks on >{PASSWORD} {rights} +cluster|slots +asking");
        let words: Vec<_> = rule.split_whitespace().collect();
        assert_eq!(cluster.member(member).command(&words).text(), "OK");
    }
    let url = cluster.url().replace("://", &format!("://locks:{PASSWORD}@")) + "?prefix=app:";
    let findings = diagnose(&url).await;
    is(&findings, "rights", Severity::Failure, &["+evalsha"]);
    let port = cluster.member(1).addr().to_string();
    assert_eq!(of(&findings, "rights").server.as_deref(), Some(&*port));
    let failures = findings.iter().filter(|finding| finding.severity == Severity::Failure);
    assert!(failures.clone().all(|finding| finding.server.as_deref() == Some(&*port)));
    is_unseen(&findings, "cluster", &["+cluster|info"]);
}

#[tokio::test]
async fn sentinels_are_checked_and_then_the_primary() {
    let options = durable().setting("repl-diskless-sync-delay", "0");
    let starting = tokio::task::spawn_blocking(|| SentinelGroup::start(options));
    let group = starting.await.unwrap();
    let url = format!("{}?min_replicas=1", group.url());
    let findings = diagnose(&url).await;
    else_ok(&findings, &[]);
    let primary = group.server(0).addr().to_string();
    is(&findings, "primary", Severity::Ok, &["3 of 3", &primary]);
    for check in CHECKS {
        assert_eq!(of(&findings, check).server.as_deref(), Some(&*primary), "{check}");
    }
    is(&findings, "failover", Severity::Ok, &["known: 1", "1s"]);

    let two = url.replacen(&format!(",{}", group.sentinel(2).addr()), "", 1);
    is(&diagnose(&two).await, "sentinels", Severity::Warning, &["they know 3", "name all"]);

    let set = ["SENTINEL", "SET", group.service(), "down-after-milliseconds", "30000"];
    assert_eq!(group.sentinel(0).command(&set).text(), "OK");
    is(&diagnose(&url).await, "failover", Severity::Warning, &["30s", "down-after-milliseconds"]);

    let set = ["SENTINEL", "SET", group.service(), "down-after-milliseconds", "1000"];
    assert_eq!(group.sentinel(0).command(&set).text(), "OK");

    group.sentinel(1).kill();
    let findings = diagnose(&url).await;
    is(&findings, "sentinels", Severity::Warning, &["2 of the 3"]);
    let down = group.sentinel(1).addr().to_string();
    let is_down = |finding: &Finding| {
        finding.check == "connection"
            && finding.severity == Severity::Warning
            && finding.server.as_deref() == Some(&*down)
    };
    assert!(findings.iter().any(is_down), "{findings:#?}");
    is(&findings, "quorum", Severity::Ok, &[]);
    else_ok(&findings, &["sentinels", "connection"]);

    group.sentinel(2).kill();
    let says = || group.sentinel(0).command(&["SENTINEL", "CKQUORUM", group.service()]).text();
    tokio::time::timeout(SOON, eventually(|| says().contains("NOQUORUM"))).await.unwrap();
    let findings = diagnose(&url).await;
    is(&findings, "sentinels", Severity::Warning, &["1 of the 3", "unnoticed"]);
    is(&findings, "quorum", Severity::Warning, &["no failover is possible"]);

    let findings = diagnose(&url.replacen(group.service(), "other", 1)).await;
    let words = ["know no primary of that name", "correct the name"];
    is(&findings, "sentinels", Severity::Failure, &words);
    assert!(!of(&findings, "sentinels").text.contains("0 of the"), "{findings:#?}");

    group.sentinel(0).kill();
    let findings = diagnose(&url).await;
    is(&findings, "sentinels", Severity::Failure, &["0 of the 3"]);
    is(&findings, "primary", Severity::Failure, &["no sentinel"]);
    assert!(findings.iter().any(|it| it.severity == Severity::Failure && it.check == "connection"));
}

#[tokio::test]
async fn replicas_that_cannot_take_over_are_found() {
    // Only Sentinels read it, and of replicas only.
    let options = durable().setting("replica-priority", "0");
    let group = tokio::task::spawn_blocking(|| SentinelGroup::start(options)).await.unwrap();
    let says = |number: usize| {
        let replicas = ["SENTINEL", "REPLICAS", group.service()];
        group.sentinel(number).command(&replicas).text()
    };
    let is_known = || (0..3).all(|number| says(number).contains("slave-priority\n0\n"));
    tokio::time::timeout(SOON, eventually(is_known)).await.unwrap();
    let url = format!("{}?min_replicas=1", group.url());
    let findings = diagnose(&url).await;
    let replica = group.server(1).addr().to_string();
    let words = ["none can take over", &replica, "replica-priority is 0", "set replica-priority"];
    is(&findings, "failover", Severity::Warning, &words);
    else_ok(&findings, &["failover"]);

    group.server(1).kill();
    let is_down = || (0..3).all(|number| says(number).contains("s_down"));
    tokio::time::timeout(SOON, eventually(is_down)).await.unwrap();
    let words = ["none can take over", &replica, "is down", "start"];
    is(&diagnose(&url).await, "failover", Severity::Warning, &words);
}
