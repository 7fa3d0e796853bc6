//! The findings about servers that are configured well, and about each way in which they are not.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use lock_conformance::proxy::{Fault, Proxy};
use lock_core::Backend;
use lock_core::backend::ReleaseMode;
use lock_core::diagnosis::{Finding, Severity};
use lock_zookeeper::{Config, ZooKeeper, diagnose};
use test_servers::{KeepData, ZooKeeper as Server, ZooKeeperEnsemble, ZooKeeperOptions};
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Permission};

use crate::refusals::set_quota;
use crate::support::{claim, client, operator, server, soon, until, win};

/// The checks of a single server that serves. Its `ensemble` is a warning.
const OF_A_SERVER: [&str; 12] = [
    "connection",
    "login",
    "version",
    "mode",
    "session timeout",
    "tick",
    "session limits",
    "round trip",
    "local sessions",
    "rights",
    "sequence numbers",
    "lock rights",
];

fn url_of(user: &str, server: &Server) -> String {
    format!("zookeeper://{user}{}", server.addr())
}

/// Returns the findings at `url`. Without a session timeout in it, sessions are so long that no
/// usual commit of a busy machine is slow.
async fn diagnosis(url: &str) -> Vec<Finding> {
    let mut config = Config::new(url).expect("a URL");
    if !url.contains("session_timeout") {
        config = config.session_timeout(Duration::from_secs(60)).unwrap();
    }
    // Callers may check several backends at the same time.
    let diagnosis = tokio::spawn(async move { diagnose(&config).await });
    let findings = soon(diagnosis).await.unwrap();
    for finding in &findings {
        println!("{finding}");
        assert!(!finding.to_string().contains("secret"), "{finding}");
        assert!(finding.severity == Severity::Ok || finding.remedy.is_some(), "{finding}");
    }
    findings
}

/// Returns the findings that are not ok, as their severity and check. On a busy machine a single
/// commit may take seconds, which is a warning about no setting.
fn flaws(findings: &[Finding]) -> Vec<(Severity, &'static str)> {
    let is_busy =
        |finding: &Finding| finding.check == "round trip" && finding.severity == Severity::Warning;
    let flaws = findings.iter().filter(|finding| finding.severity != Severity::Ok);
    let flaws = flaws.filter(|finding| !is_busy(finding));
    flaws.map(|finding| (finding.severity, finding.check)).collect()
}

fn of<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
    let found = findings.iter().filter(|finding| finding.check == check);
    found.max_by_key(|finding| finding.severity).unwrap_or_else(|| panic!("no {check}"))
}

/// Returns all nodes with their data and the transactions that changed them.
async fn tree(operator: &Client) -> BTreeMap<String, (Vec<u8>, i64, i64)> {
    let (mut tree, mut open) = (BTreeMap::new(), vec![String::new()]);
    while let Some(path) = open.pop() {
        let node = if path.is_empty() { "/" } else { &path };
        let (data, stat) = operator.get_data(node).await.expect("it can be read");
        // A node that was created and removed changes its parent, and nothing else.
        tree.insert(path.clone(), (data, stat.czxid, stat.mzxid));
        let children = operator.list_children(node).await.expect("it can be listed");
        open.extend(children.iter().map(|child| format!("{path}/{child}")));
    }
    tree
}

#[tokio::test(flavor = "multi_thread")]
async fn a_well_configured_ensemble_is_all_ok_and_left_as_it_was() {
    let ensemble = ZooKeeperEnsemble::start(&ZooKeeperOptions::new());
    let operator = operator(ensemble.member(0).addr()).await;
    for url in [ensemble.url(), format!("{}?prefix=app/locks/", ensemble.url())] {
        // Before there is a lock, and where one is held.
        for is_held in [false, true] {
            let client = ZooKeeper::connect(&*url).await.unwrap();
            let held = claim("n", true);
            if is_held {
                win(&client, &held).await;
            }
            let before = tree(&operator).await;
            let findings = diagnosis(&url).await;
            assert_eq!(flaws(&findings), [], "{url}");
            for check in [&OF_A_SERVER[..], &["ensemble", "members", "one ensemble"]].concat() {
                of(&findings, check);
            }
            let servers = findings.iter().filter(|finding| finding.check == "round trip");
            assert_eq!(servers.filter_map(|finding| finding.server.as_ref()).count(), 3);
            assert_eq!(tree(&operator).await, before);
            client.release(&held, ReleaseMode::now()).await.unwrap();
        }
    }
    for member in ensemble.members() {
        let dump = member.word("cons").unwrap();
        let sessions = dump.matches("sid=0x").count();
        assert!(sessions <= 5, "sessions are left open: {dump}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_are_dead_or_unknown_are_warned_of() {
    let ensemble = ZooKeeperEnsemble::start(&ZooKeeperOptions::new());
    let dead = ensemble.follower();
    ensemble.member(dead).kill();
    let findings = diagnosis(&ensemble.url()).await;
    assert_eq!(flaws(&findings), [(Severity::Warning, "connection")]);
    let connection = of(&findings, "connection");
    let address = ensemble.member(dead).addr().to_string();
    assert_eq!(connection.server.as_deref(), Some(&*address));
    assert!(connection.text.contains("2 of 3"), "{connection}");

    let leader = ensemble.leader();
    let url = format!("{},locks.invalid:2181", ensemble.member(leader).url());
    let findings = diagnosis(&url).await;
    assert_eq!(
        flaws(&findings),
        [(Severity::Warning, "connection"), (Severity::Warning, "members")]
    );
    assert_eq!(of(&findings, "connection").server.as_deref(), Some("locks.invalid:2181"));

    ensemble.member(leader).kill();
    let left = (0..3).find(|&member| member != dead && member != leader).unwrap();
    until("it notices", async || ensemble.member(left).mode().is_none()).await;
    let url = format!("{}?session_timeout=2s", ensemble.url());
    let findings = diagnosis(&url).await;
    let count = |check| flaws(&findings).iter().filter(|flaw| **flaw == check).count();
    assert_eq!(count((Severity::Failure, "connection")), 3);
    assert_eq!(count((Severity::Failure, "mode")), 1);
    assert!(!findings.iter().any(|finding| finding.check == "round trip"));
}

#[tokio::test]
async fn a_member_that_only_answers_reads_is_a_failure() {
    let options = ZooKeeperOptions::new().property("readonlymode.enabled", "true");
    let ensemble = ZooKeeperEnsemble::start(&options);
    ensemble.member(0).kill();
    ensemble.member(1).kill();
    let left = ensemble.member(2);
    until("it answers reads", async || left.mode().as_deref() == Some("read-only")).await;
    let findings = diagnosis(&format!("{}?session_timeout=2s", left.url())).await;
    let mode = of(&findings, "mode");
    assert!(mode.severity == Severity::Failure && mode.text.contains("reads only"), "{mode}");
    assert_eq!(of(&findings, "connection").severity, Severity::Failure);
}

#[tokio::test]
async fn one_server_alone_is_warned_of() {
    let server = server();
    let findings = diagnosis(&server.url()).await;
    assert_eq!(flaws(&findings), [(Severity::Warning, "ensemble")]);
    for check in OF_A_SERVER {
        of(&findings, check);
    }
}

/// Each grants the lock, so it has two holders.
#[tokio::test]
async fn servers_of_different_ensembles_are_a_failure() {
    let servers = [server(), server()];
    let url = format!("{},{}", servers[0].url(), servers[1].addr());
    let findings = diagnosis(&url).await;
    let one = of(&findings, "one ensemble");
    assert_eq!(one.severity, Severity::Failure);
    assert!(one.text.contains(&servers[1].addr().to_string()), "{one}");
    for server in &servers {
        let nodes = operator(server.addr()).await.list_children("/").await.unwrap();
        assert_eq!(nodes, ["zookeeper"]);
    }
}

#[tokio::test]
async fn a_shorter_session_and_a_long_tick_are_warned_of() {
    let low = Server::start(&ZooKeeperOptions::new().setting("maxSessionTimeout", "4000"));
    let findings = diagnosis(&low.url()).await;
    let flaw = of(&findings, "session timeout");
    assert_eq!(flaw.severity, Severity::Warning);
    assert!(flaw.text.contains("asked for 60s, granted 4s"), "{flaw}");
    assert_eq!(of(&findings, "tick").severity, Severity::Ok);

    // As where `tickTime` is unset.
    let slow = Server::start(&ZooKeeperOptions::new().tick(Duration::from_secs(3)));
    let findings = diagnosis(&format!("{}?session_timeout=10s", slow.url())).await;
    let flaw = of(&findings, "tick");
    assert_eq!(flaw.severity, Severity::Warning);
    assert!(flaw.remedy.as_ref().unwrap().contains("12s"), "{flaw}");
    let findings = diagnosis(&format!("{}?session_timeout=12s", slow.url())).await;
    assert_eq!(flaws(&findings), [(Severity::Warning, "ensemble")]);
    let findings = diagnosis(&format!("{}?session_timeout=2s", slow.url())).await;
    assert!(of(&findings, "session timeout").text.contains("granted 6s"));

    let options = ZooKeeperOptions::new().tick(Duration::from_secs(2));
    let odd = Server::start(&options.setting("minSessionTimeout", "1000"));
    let findings = diagnosis(&format!("{}?session_timeout=3s", odd.url())).await;
    assert_eq!(of(&findings, "tick").severity, Severity::Failure);
}

#[tokio::test]
async fn forbidden_words_are_unseen_unless_the_grants_tell() {
    let options = || ZooKeeperOptions::new().setting("4lw.commands.whitelist", "srvr");
    let defaults = Server::start(&options().setting("maxSessionTimeout", "4000"));
    let findings = diagnosis(&format!("{}?session_timeout=4s", defaults.url())).await;
    assert_eq!(flaws(&findings), [(Severity::Warning, "ensemble")], "the tick follows");
    let text = &of(&findings, "tick").text;
    assert!(text.contains("200ms"), "{text}");

    let server = Server::start(&options());
    let findings = diagnosis(&server.url()).await;
    assert_eq!(flaws(&findings), [(Severity::Warning, "tick"), (Severity::Warning, "ensemble")]);
    let tick = of(&findings, "tick");
    assert!(tick.text.contains("could not be seen"), "{tick}");
    assert!(tick.remedy.as_ref().unwrap().contains("4lw.commands.whitelist"), "{tick}");
}

#[tokio::test(flavor = "multi_thread")]
async fn members_with_different_limits_are_warned_of() {
    let ensemble = ZooKeeperEnsemble::start(&ZooKeeperOptions::new());
    let member = ensemble.member(ensemble.follower());
    member.restart_with("maxSessionTimeout", "40000");
    let url = format!("{}?session_timeout=40s", ensemble.url());
    let findings = diagnosis(&url).await;
    assert_eq!(flaws(&findings), [(Severity::Warning, "session limits")]);

    // Without the word conf. All servers answer srvr.
    let config = member.directory().join("zoo.cfg");
    let text = fs::read_to_string(&config).unwrap();
    let text = text.replace("4lw.commands.whitelist=*", "4lw.commands.whitelist=ruok");
    fs::write(&config, text).unwrap();
    member.restart(KeepData::Yes);
    until("it serves", async || ZooKeeper::connect(member.url()).await.is_ok()).await;
    let findings = diagnosis(&url).await;
    let mut checks: Vec<_> = flaws(&findings).into_iter().map(|(_, check)| check).collect();
    checks.sort_unstable();
    assert_eq!(checks, ["session limits", "tick"]);
    let unseen = of(&findings, "tick");
    assert!(unseen.text.contains("could not be seen"), "{unseen}");
    assert_eq!(unseen.server.as_deref(), Some(&*member.addr().to_string()));
}

#[tokio::test]
async fn each_right_that_is_missing_is_named() {
    let server = server();
    let operator = operator(server.addr()).await;
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    operator.create("/app", b"", &open).await.unwrap();
    let url = format!("{}/app?prefix=locks/", url_of("locks:secret@", &server));
    operator.create("/app/locks", b"", &open).await.unwrap();
    for (rights, severity, hint) in [
        (Permission::READ | Permission::DELETE, Severity::Failure, "may not create nodes in"),
        (Permission::CREATE | Permission::DELETE, Severity::Warning, "cannot be listed"),
        (Permission::READ | Permission::CREATE, Severity::Warning, "may not delete nodes in"),
        (Permission::ALL, Severity::Ok, "create, read and delete"),
    ] {
        let acl = [Acl::new(rights | Permission::ADMIN, AuthId::anyone())];
        operator.set_acl("/app/locks", &acl, None).await.unwrap();
        let findings = diagnosis(&url).await;
        let found = of(&findings, "rights");
        assert!(found.severity == severity && found.text.contains(hint), "{found}");
        assert!(found.text.contains("/locks"), "{found}");
        let open = [Acl::new(Permission::ALL, AuthId::anyone())];
        operator.set_acl("/app/locks", &open, None).await.unwrap();
        assert!(operator.list_children("/app/locks").await.unwrap().is_empty());
    }

    // A root that may not be read, and one that is not there.
    let acl = [Acl::new(Permission::CREATE | Permission::ADMIN, AuthId::anyone())];
    operator.set_acl("/app", &acl, None).await.unwrap();
    assert_eq!(flaws(&diagnosis(&url).await), [(Severity::Failure, "rights")]);
    let url = format!("{}/none", server.url());
    assert_eq!(flaws(&diagnosis(&url).await), [(Severity::Failure, "chroot")]);
}

#[tokio::test]
async fn a_used_up_quota_is_a_failure() {
    let server = Server::start(&ZooKeeperOptions::new().setting("enforceQuota", "true"));
    set_quota(&operator(server.addr()).await, 1).await;
    let findings = diagnosis(&format!("{}/app", server.url())).await;
    assert_eq!(of(&findings, "quota").severity, Severity::Failure);
}

#[tokio::test]
async fn locks_of_another_user_are_a_failure() {
    let server = server();
    let theirs = ZooKeeper::connect(url_of("theirs:hunter2@", &server)).await.unwrap();
    win(&theirs, &claim("n", true)).await;
    let findings = diagnosis(&url_of("locks:secret@", &server)).await;
    let found = of(&findings, "lock rights");
    assert_eq!(found.severity, Severity::Failure);
    assert!(found.text.contains("/n (read)"), "{found}");

    let operator = operator(server.addr()).await;
    let acl = [Acl::new(Permission::READ | Permission::CREATE, AuthId::anyone())];
    let fixed = CreateMode::Persistent.with_acls(Acls::new(&acl));
    operator.create("/m", b"", &fixed).await.unwrap();
    let findings = diagnosis(&server.url()).await;
    let found = of(&findings, "lock rights");
    assert!(found.text.contains("/m (write)"), "{found}");
    assert!(operator.list_children("/m").await.unwrap().is_empty());
}

#[tokio::test]
async fn a_server_that_demands_a_login_is_a_failure() {
    let options = ZooKeeperOptions::new()
        .property("zookeeper.enforce.auth.enabled", "true")
        .property("zookeeper.enforce.auth.schemes", "digest");
    let server = Server::start(&options);
    assert_eq!(flaws(&diagnosis(&server.url()).await), [(Severity::Failure, "login")]);
    let findings = diagnosis(&url_of("locks:secret@", &server)).await;
    assert_eq!(flaws(&findings), [(Severity::Warning, "ensemble")]);
}

#[tokio::test]
async fn local_sessions_are_a_failure() {
    let options = ZooKeeperOptions::new().setting("localSessionsEnabled", "true");
    let ensemble = ZooKeeperEnsemble::start(&options);
    let findings = diagnosis(&ensemble.member(ensemble.follower()).url()).await;
    let found = of(&findings, "local sessions");
    assert_eq!(found.severity, Severity::Failure);
    assert!(found.remedy.as_ref().unwrap().contains("localSessionsUpgradingEnabled"), "{found}");
}

#[tokio::test]
async fn a_queue_near_the_end_of_its_numbers_is_found() {
    let server = server();
    {
        let client = client(server.addr()).await;
        let first = claim("n", true);
        win(&client, &first).await;
        client.release(&first, ReleaseMode::now()).await.unwrap();
    }
    let findings = diagnosis(&server.url()).await;
    assert!(of(&findings, "sequence numbers").text.contains("/n has used 1 of"));
    let limit = i32::MAX - 1_000_000;
    for (next, severity) in [
        (limit / 100 * 90 - 1, Severity::Ok),
        (limit / 100 * 90, Severity::Warning),
        (limit - 1, Severity::Warning),
        (limit, Severity::Failure),
        (i32::MAX, Severity::Failure),
    ] {
        server.restart_with_sequence("/n", next);
        // A child does not change the number of the next one.
        let operator = operator(server.addr()).await;
        let findings = diagnosis(&server.url()).await;
        let found = of(&findings, "sequence numbers");
        assert_eq!(found.severity, severity, "{found}");
        assert!(found.text.contains(&format!("/n has used {next} of")), "{found}");
        assert!(operator.list_children("/n").await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn other_recipes_on_the_paths_of_locks_are_found() {
    let server = server();
    let operator = operator(server.addr()).await;
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for (node, data) in [
        ("/free", ""),
        ("/other", "{}"),
        ("/semaphore", "5"),
        ("/semaphore/00112233445566778899aabbccddeeff", ""),
        ("/readers", ""),
        ("/readers/_c_x-__READ__0000000000", ""),
    ] {
        operator.create(node, data.as_bytes(), &open).await.unwrap();
    }
    let before = tree(&operator).await;
    let findings = diagnosis(&server.url()).await;
    let found = of(&findings, "other recipes");
    assert_eq!(found.severity, Severity::Warning);
    for part in ["2 of all 4", "/semaphore (kazoo's Semaphore)", "/readers (Curator's"] {
        assert!(found.text.contains(part), "{found}");
    }
    assert_eq!(tree(&operator).await, before);
}

#[tokio::test]
async fn slow_commits_are_warned_of_before_locks_are_lost() {
    let server = server();
    let proxy = Proxy::start(server.addr()).expect("a proxy can be started");
    proxy.set(Fault::delay(Duration::from_millis(300)));
    for (timeout, severity) in [("10s", Severity::Warning), ("5s", Severity::Failure)] {
        let url = format!("zookeeper://{}?session_timeout={timeout}", proxy.addr());
        let findings = diagnosis(&url).await;
        assert_eq!(of(&findings, "round trip").severity, severity);
    }
}

#[tokio::test]
async fn a_port_that_is_no_zookeeper_is_a_failure_that_hints_at_tls() {
    let memcached = test_servers::Memcached::start(test_servers::MemcachedOptions::new());
    let url = format!("zookeeper://locks:secret@{}?session_timeout=1s", memcached.addr());
    let findings = diagnosis(&url).await;
    let found = of(&findings, "connection");
    assert_eq!(found.severity, Severity::Failure);
    assert!(found.remedy.is_some(), "{found}");
}
