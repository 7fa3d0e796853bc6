//! The findings about servers that are configured well, and about each way in which they are not.

use std::time::Duration;

use lock_conformance::proxy::{Fault, Proxy};
use lock_core::Locker;
use lock_core::diagnosis::{Finding, Severity};
use lock_memcache::{Config, diagnose};
use test_servers::{MemcachedOptions, Step};

mod support;

use support::{Server, client, start};

async fn diagnosis(url: &str) -> Vec<Finding> {
    let config = Config::new(url).expect("a URL");
    // Callers may check several backends at the same time.
    let findings = tokio::spawn(async move { diagnose(&config).await }).await.unwrap();
    for finding in &findings {
        println!("{finding}");
        assert!(!finding.to_string().contains("secret"), "{finding}");
        assert!(finding.severity == Severity::Ok || finding.remedy.is_some(), "{finding}");
    }
    findings
}

/// Returns the findings that are not ok, as their severity and check. On a busy machine a single
/// read may take long, which is a warning about no setting.
fn flaws(findings: &[Finding]) -> Vec<(Severity, &'static str)> {
    let flaws = findings.iter().filter(|finding| finding.severity != Severity::Ok);
    let flaws = flaws.filter(|finding| finding.check != "round trip");
    flaws.map(|finding| (finding.severity, finding.check)).collect()
}

fn of<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
    let found = findings.iter().filter(|finding| finding.check == check);
    found.max_by_key(|finding| finding.severity).unwrap_or_else(|| panic!("no {check}"))
}

/// Returns the numbers of items that the server has, and has had.
fn items(server: &Server) -> [String; 2] {
    ["curr_items", "total_items"].map(|name| server.stat(name))
}

#[tokio::test]
async fn a_well_configured_server_is_all_ok_and_left_as_it_was() {
    let server = start();
    for is_held in [false, true] {
        let locks = Locker::new(client(&server).await);
        let guard = match is_held {
            true => Some(locks.lock("n").unwrap().acquire().await.unwrap()),
            false => None,
        };
        let (before, counter) = (items(&server), server.value("%fence"));
        let findings = diagnosis(&server.url()).await;
        assert_eq!(flaws(&findings), []);
        let checks: Vec<_> = findings.iter().map(|finding| finding.check).collect();
        assert_eq!(
            checks,
            [
                "advisory",
                "servers",
                "connection",
                "login",
                "version",
                "uptime",
                "flush",
                "connections",
                "eviction",
                "evicted",
                "memory",
                "item size",
                "round trip",
                "clock",
                "token counter"
            ]
        );
        assert!(of(&findings, "advisory").text.contains("drop a held lock"));
        assert_eq!((items(&server), server.value("%fence")), (before, counter));
        if let Some(guard) = guard {
            guard.release().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_server_without_a_counter_keeps_none() {
    let server = start();
    assert_eq!(flaws(&diagnosis(&server.url()).await), []);
    assert_eq!(items(&server), ["0", "0"]);
}

#[tokio::test]
async fn eviction_is_warned_of_and_so_is_that_it_happened() {
    let server = Server::start(MemcachedOptions::new().evicting().arg("-m").arg("2"));
    assert_eq!(flaws(&diagnosis(&server.url()).await), [(Severity::Warning, "eviction")]);
    let mut operator = server.connect().unwrap();
    let value = "x".repeat(500_000);
    let mut number = 0;
    while server.stat("evictions") == "0" {
        number += 1;
        let _ = operator.command(&format!("set big/{number} 0 0 500000\r\n{value}")).unwrap();
        assert!(number < 100, "it evicts nothing");
    }
    let before = items(&server);
    let findings = diagnosis(&server.url()).await;
    for check in ["eviction", "evicted"] {
        assert_eq!(of(&findings, check).severity, Severity::Warning);
    }
    assert_eq!(items(&server), before);
}

#[tokio::test]
async fn a_flush_is_warned_of() {
    let server = start();
    assert_eq!(server.command("flush_all"), "OK");
    assert_eq!(flaws(&diagnosis(&server.url()).await), [(Severity::Warning, "flush")]);
}

#[tokio::test]
async fn logins_are_checked_and_credentials_stay_secret() {
    let server = Server::start(MemcachedOptions::new().credentials("locks", "secret"));
    let findings = diagnosis(&server.url()).await;
    assert_eq!(flaws(&findings), []);
    assert!(of(&findings, "login").text.contains("in the clear"));
    for user in ["", "locks:secret2@", "secret:x@"] {
        let findings = diagnosis(&format!("memcache://{user}{}", server.addr())).await;
        assert_eq!(flaws(&findings), [(Severity::Failure, "login")], "{user}");
    }
}

/// It would take them for an item that each client can read.
#[tokio::test]
async fn credentials_are_not_sent_to_a_server_that_demands_none() {
    let server = start();
    let findings = diagnosis(&format!("memcache://locks:secret@{}", server.addr())).await;
    assert_eq!(flaws(&findings), [(Severity::Warning, "login")]);
    assert_eq!(items(&server), ["0", "0"]);
}

#[tokio::test]
async fn of_two_servers_the_dead_one_is_a_failure() {
    let servers = [start(), start()];
    servers[1].kill();
    let url = format!("{},{}", servers[0].url(), servers[1].addr());
    let findings = diagnosis(&url).await;
    assert_eq!(flaws(&findings), [(Severity::Failure, "connection")]);
    let dead = of(&findings, "connection");
    assert_eq!(dead.server.as_deref(), Some(&*servers[1].addr().to_string()));
    assert!(dead.text.contains("share of the locks"), "{dead}");
    assert!(of(&findings, "servers").text.contains("2 servers"));
    servers[0].kill();
    let failures = flaws(&diagnosis(&url).await);
    assert_eq!(failures, [(Severity::Failure, "connection"); 2]);
}

#[tokio::test]
async fn a_server_without_cas_numbers_is_a_failure() {
    let server = Server::start(MemcachedOptions::new().arg("-C"));
    let findings = diagnosis(&server.url()).await;
    assert_eq!(flaws(&findings), [(Severity::Failure, "commands")]);
    assert!(of(&findings, "commands").text.contains("-C"));
}

#[tokio::test]
async fn a_counter_that_was_rewritten_is_a_failure() {
    let server = start();
    for rewritten in ["5", "18446744073709551615", "abc"] {
        let set = format!("set %fence 0 0 {}\r\n{rewritten}", rewritten.len());
        assert_eq!(server.command(&set), "STORED");
        let findings = diagnosis(&server.url()).await;
        assert_eq!(flaws(&findings), [(Severity::Failure, "token counter")], "{rewritten}");
        assert_eq!(server.value("%fence").as_deref(), Some(rewritten));
    }
}

#[tokio::test]
async fn a_clock_that_is_off_is_warned_of() {
    let server = Server::start(MemcachedOptions::new().clocks());
    assert_eq!(flaws(&diagnosis(&server.url()).await), []);
    server.wall_clock().step(Step::Back(Duration::from_secs(3600)));
    server.restart();
    let findings = diagnosis(&server.url()).await;
    assert_eq!(flaws(&findings), [(Severity::Warning, "clock")]);
    assert!(of(&findings, "clock").text.contains("behind"));
}

#[tokio::test]
async fn a_crowded_server_and_a_slow_one_are_warned_of() {
    let server = Server::start(MemcachedOptions::new().arg("-c").arg("200"));
    let mut others: Vec<_> = (0..162).map(|_| server.connect().unwrap()).collect();
    let findings = diagnosis(&server.url()).await;
    assert_eq!(flaws(&findings), [(Severity::Warning, "connections")]);
    others.extend((0..100).map_while(|_| server.connect().ok()));
    let findings = diagnosis(&server.url()).await;
    assert_eq!(flaws(&findings), [(Severity::Failure, "connections")]);

    let server = start();
    let far = Proxy::start(server.addr()).expect("a proxy can be started");
    far.set(Fault::delay(Duration::from_millis(260)));
    let findings = diagnosis(&format!("memcache://{}", far.addr())).await;
    assert_eq!(of(&findings, "round trip").severity, Severity::Warning);
}
