//! A crowd, and a server that is killed under it. The recorded history is checked.

use std::collections::HashMap;
use std::time::Duration;

use lock_conformance::proxy::Proxy;
use lock_core::clock::{Moment, sleep};
use lock_core::{Locker, Loss};
use lock_history::{Assumption, Clock, Header, Kind, Line, Op, Recorder, Trouble};
use lock_redis::Redis;
use tokio::task::{JoinHandle, JoinSet};

use crate::support::{Server, eventually};

const HOLDERS: usize = 100;
const WAITERS: usize = 1000;

/// Lockers with connections of their own, like as many processes.
const PROCESSES: usize = 20;

const TTL: Duration = Duration::from_secs(4);

/// The limit for a waiter's next poll after an outage: one second, and the delay of a loaded
/// machine.
const LOOKS_AGAIN_WITHIN: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_notifies_holders_and_serves_waiters() {
    let server = Server::start();
    let network = Proxy::start(server.addr()).unwrap();
    let url = format!("redis://{}", network.addr());
    let mut lockers = Vec::new();
    for _ in 0..PROCESSES {
        let client = Redis::connect(&*url).await.unwrap();
        lockers.push(Locker::builder(client).default_ttl(TTL).build());
    }

    let mut header = Header::new("server killed", 0, lockers[0].capabilities(), TTL);
    header.breaks = vec![Assumption::A2];
    header.residue = Some(vec!["{n*}%token".to_owned(), "{n*}%gone:*".to_owned()]);
    let recorder = Recorder::in_memory(Clock::core(), header);

    let holders = all_hold(&lockers, &recorder).await;
    let mut waiters = all_wait(&lockers, &recorder);
    let waiting = || (0..HOLDERS).map(|number| server.waiting(&format!("n{number}"))).sum::<u64>();
    eventually(|| waiting() == WAITERS as u64).await;

    let fault = Trouble::Other("server killed".to_owned());
    let fault = recorder.fault(fault).breaks(Assumption::A2).begin();
    let (killed, connections) = (Moment::now(), network.stats().connections);
    server.kill();
    for holder in holders {
        let loss = tokio::time::timeout(TTL * 2, holder).await.expect("it is told").unwrap();
        assert_eq!(loss, Loss::Expired);
    }
    let away = Moment::now().saturating_since(killed);
    let attempts = network.stats().connections - connections;
    server.start_again();
    fault.heal();

    while let Some(served) = waiters.join_next().await {
        served.unwrap();
    }
    recorder.residue(server.keys());
    let history = recorder.history().unwrap();
    let report = lock_history::check(&history);
    println!("{report}");
    assert!(report.is_legal(), "{report}");
    assert_eq!(report.grants, HOLDERS + WAITERS);
    let late = first_grants_after_the_restart(&recorder.lines()).into_values().max().unwrap();
    println!("{late:?} after the restart, every lock was held again");
    assert!(late <= LOOKS_AGAIN_WITHIN, "{late:?} after the restart");

    // Each connection retries by itself after a pause of 10 ms to 200 ms, never less than half of
    // it.
    let limit = PROCESSES as u64 * (6 + away.as_millis() as u64 / 100);
    println!("{attempts} attempts to connect in {away:?}");
    assert!(attempts <= limit, "{attempts} attempts to connect in {away:?}");
}

/// Returns for each lock how long it was free while none of its waiters knew.
fn first_grants_after_the_restart(lines: &[Line]) -> HashMap<String, Duration> {
    let is_back = |line: &Line| if let Line::Heal(heal) = line { Some(heal.t) } else { None };
    let back = lines.iter().find_map(is_back).expect("the restart is recorded");
    let mut first = HashMap::new();
    for line in lines {
        if let Line::Record(record) = line
            && (record.kind, record.op) == (Kind::Ok, Op::Acquire)
            && record.t > back
        {
            let after = Duration::from_nanos(record.t - back);
            first.entry(record.lock.clone()).or_insert(after);
        }
    }
    assert_eq!(first.len(), HOLDERS);
    first
}

/// Lets each client hold a lock of its own until it is notified of its loss.
async fn all_hold(lockers: &[Locker], recorder: &Recorder) -> Vec<JoinHandle<Loss>> {
    let mut holders = Vec::new();
    for number in 0..HOLDERS {
        let lock = lockers[number % PROCESSES].lock(format!("n{number}")).unwrap();
        let mut client = recorder.client(format!("p{}/holder{number}", number % PROCESSES));
        let held = client.acquire(&lock).await.unwrap();
        holders.push(tokio::spawn(async move {
            let loss = held.lost().await;
            assert!(!client.check(&held), "told, and still held");
            let released = client.release(held).await;
            assert!(released.is_err(), "a lost lock was released");
            loss
        }));
    }
    holders
}

/// Starts tasks that each wait for a lock with other holders and waiters, and hold it for a moment.
fn all_wait(lockers: &[Locker], recorder: &Recorder) -> JoinSet<()> {
    let mut waiters = JoinSet::new();
    for number in 0..WAITERS {
        // The next locker in each round, so that many lockers have waiters for a lock.
        let process = (number + number / HOLDERS) % PROCESSES;
        let lock = lockers[process].lock(format!("n{}", number % HOLDERS)).unwrap();
        let mut client = recorder.client(format!("p{process}/waiter{number}"));
        waiters.spawn(async move {
            let held = client.acquire(&lock).await.unwrap();
            assert!(client.check(&held));
            sleep(Duration::from_millis(1)).await;
            client.release(held).await.unwrap();
        });
    }
    waiters
}
