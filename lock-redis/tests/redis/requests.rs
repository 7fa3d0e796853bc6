//! Counts each request to the server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lock_core::backend::{ReleaseMode, Renewal};
use lock_core::clock::{Moment, sleep};
use lock_core::{Backend, Locker};
use redis::Script;
use test_servers::Monitor;

use crate::support::{Server, claim, eventually, renew, win};

const TTL: Duration = Duration::from_secs(2);
const PROCESSES: usize = 4;
const WAITERS: usize = 4;

/// The requests of one process, by their purpose.
#[derive(Default)]
struct Asked {
    /// Commands of a connection, and of a backend that is made.
    connecting: BTreeMap<String, usize>,
    /// Attempts, by their owners.
    attempts: BTreeMap<String, usize>,
    /// When its waiters asked again, by the server's clock.
    looks: Vec<Duration>,
    renewals: usize,
    /// By their owners.
    releases: BTreeMap<String, usize>,
    /// Releases that are no scripts, by their owners.
    deletes: BTreeMap<String, usize>,
}

/// The digests of scripts.
struct Scripts {
    acquire: String,
    quick_renew: String,
    renew: String,
    release: String,
    plain_release: String,
    rights: String,
}

impl Scripts {
    fn of_this_version() -> Self {
        macro_rules! digest {
            ($($file:literal)+) => {
                Script::new(concat!($(include_str!(concat!("../../src/scripts/", $file))),+))
                    .get_hash()
                    .to_owned()
            };
        }
        Self {
            acquire: digest!("prelude.lua" "queue.lua" "acquire.lua"),
            quick_renew: digest!("quick_renew.lua"),
            renew: digest!("prelude.lua" "queue.lua" "renew.lua"),
            release: digest!("prelude.lua" "queue.lua" "release.lua"),
            plain_release: digest!("plain_release.lua"),
            rights: digest!("rights.lua"),
        }
    }
}

/// Counts the requests by the address of the client. A request without an explanation is a failure.
fn account(lines: &[String]) -> BTreeMap<&str, Asked> {
    let scripts = Scripts::of_this_version();
    let mut clients: BTreeMap<&str, Asked> = BTreeMap::new();
    for line in lines {
        let (origin, command) = line.split_once("] ").expect("a line of MONITOR");
        let asked = clients.entry(origin.rsplit(' ').next().unwrap()).or_default();
        let words: Vec<_> = command.trim_matches('"').split("\" \"").collect();
        let mut connects = |what: String| *asked.connecting.entry(what).or_default() += 1;
        match words[..] {
            ["HELLO" | "SUBSCRIBE", ..] => connects(words[0].to_owned()),
            ["CLIENT", "TRACKING" | "CACHING", ..] => connects(words.join(" ")),
            ["INFO", "server" | "memory"] => connects("INFO".into()),
            ["SCRIPT", "LOAD", text] if text.starts_with("-- Tries every command") => {
                connects("SCRIPT LOAD".into());
            }
            ["EVALSHA", script, ..] if script == scripts.rights => connects("rights".into()),
            ["EVALSHA", script, "5", _, _, _, _, _, owner, ..] if script == scripts.acquire => {
                let times = asked.attempts.entry(owner.to_owned()).or_default();
                *times += 1;
                if *times > 1 {
                    asked.looks.push(time_of(line));
                }
            }
            // The same without a script, if this client had the lock a moment ago.
            ["SET", "n", value, "NX", "PX", _] => {
                let owner = value.split(' ').next().unwrap_or_default();
                *asked.attempts.entry(owner.to_owned()).or_default() += 1;
            }
            ["INCRBY", "{n}%token", "1"] => {}
            ["EVALSHA", script, "1", "n", value] if script == scripts.plain_release => {
                let owner = value.split(' ').next().unwrap_or_default();
                *asked.deletes.entry(owner.to_owned()).or_default() += 1;
            }
            ["EVALSHA", script, ..] if script == scripts.renew || script == scripts.quick_renew => {
                asked.renewals += 1;
            }
            ["EVALSHA", script, "5", _, _, _, _, _, owner] if script == scripts.release => {
                *asked.releases.entry(owner.to_owned()).or_default() += 1;
            }
            ["DELIFEQ", "n", value] => {
                let owner = value.split(' ').next().unwrap_or_default();
                *asked.deletes.entry(owner.to_owned()).or_default() += 1;
            }
            _ => panic!("nobody has explained {line}"),
        }
    }
    clients
}

/// Returns the time at which the server received that request.
fn time_of(line: &str) -> Duration {
    let seconds = line.split(' ').next().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs_f64(seconds.expect("a line of MONITOR begins with the time"))
}

/// Starts processes with some waiters for one lock. The first holder holds it for several leases.
async fn work(server: &Server) {
    let mut waiting = Vec::new();
    let mut lockers = Vec::new();
    for _ in 0..PROCESSES {
        lockers.push(Locker::new(server.client().await));
    }
    for number in 0..PROCESSES * WAITERS {
        let lock = lockers[number % PROCESSES].lock("n").unwrap().ttl(TTL);
        let holds = if number == 0 { TTL * 3 } else { TTL / 40 };
        waiting.push(tokio::spawn(async move {
            let guard = lock.acquire().await.expect("it is served");
            sleep(holds).await;
            guard.release().await.expect("it was held");
        }));
        if number == 0 {
            eventually(|| server.get("n").is_some()).await;
        }
    }
    for waiting in waiting {
        waiting.await.unwrap();
    }
    for locker in lockers {
        locker.close().await.unwrap();
    }
}

#[tokio::test]
async fn every_command_is_accounted_for() {
    let server = Server::start();
    let operator = server.client().await;
    // So that the server has the scripts: one that it does not know is sent twice, and loaded in
    // between.
    let mut first = claim("n", 1000);
    win(&operator, &mut first).await;
    for _ in 0..2 {
        // The first one prolongs the fence, and the next one has nothing else to do.
        let Ok(Renewal::Held(grant)) = renew(&operator, &first).await else { panic!("it is held") };
        first.ticket = grant.ticket;
    }
    operator.release(&first, ReleaseMode::now()).await.unwrap();

    let monitor = Monitor::start(server.addr()).unwrap();
    let began = Moment::now();
    // The test's own requests are not counted: they come on connections of their own.
    work(&server).await;
    let took = Moment::now().saturating_since(began);
    let lines = monitor.finish().unwrap();
    let lines: Vec<_> = lines.into_iter().filter(|line| !is_of_the_test(line)).collect();
    let clients = account(&lines);

    assert_eq!(clients.len(), PROCESSES, "one connection each");
    let leases = usize::try_from(took.as_millis() / TTL.as_millis()).unwrap() + 1;
    let mut looks = 0;
    let mut renewals = 0;
    for asked in clients.values() {
        let connecting: Vec<_> = asked.connecting.iter().map(|(what, n)| (&**what, *n)).collect();
        assert_eq!(
            connecting,
            [
                ("CLIENT CACHING YES", 1),
                ("CLIENT TRACKING ON OPTIN", 1),
                ("HELLO", 2),
                ("INFO", 2),
                ("SCRIPT LOAD", 1),
                ("SUBSCRIBE", 1),
                ("rights", 1),
            ]
        );
        assert!(asked.releases.values().all(|&times| times == 1), "each claim is let go once");
        // A client waits for all but the last one, and a holder that was sent the lock uses the
        // script.
        assert!(asked.deletes.values().sum::<usize>() <= 1, "{:?}", asked.deletes);
        let owners = |of: &BTreeMap<String, usize>| of.keys().cloned().collect::<BTreeSet<_>>();
        assert_eq!(owners(&asked.attempts), owners(&asked.releases));
        assert_eq!(asked.attempts.len(), WAITERS, "each waiter comes once");
        // One waiter polls for all of its process, at the last known end of the holder's lease. The
        // holder renews after a third, so a poll finds at least two thirds of the lease left. The
        // next poll follows after two thirds to a whole lease. Late renewals make it half.
        for pair in asked.looks.windows(2) {
            let gap = pair[1].saturating_sub(pair[0]);
            assert!(gap >= TTL / 2, "a process looked twice in {gap:?}: {:?}", asked.looks);
        }
        looks += asked.looks.len();
        renewals += asked.renewals;
    }
    assert!(looks > 0 && renewals > 0, "it took {leases} leases");
    // Renewals come at three tenths of a lease at the earliest.
    assert!(renewals <= leases * 10 / 3 + PROCESSES, "{renewals} renewals in {leases} leases");
}

/// Returns true for a request of [`eventually`], and for the client library's name, which most
/// servers refuse before they show it.
fn is_of_the_test(line: &str) -> bool {
    line.ends_with("\"GET\" \"n\"") || line.contains("\"CLIENT\" \"SETINFO\"")
}
