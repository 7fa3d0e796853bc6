//! The queue of waiters at the member that breaks ties, on members in memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::backend::{
    Attempt, Backend, Claim, Fault, FaultKind, Grant, OnContention, Release, ReleaseMode, Renewal,
};
use lock_core::clock::{Moment, sleep};
use lock_core::faults::{FaultInjector, Injection, Verb};
use lock_core::{FencingToken, LockName, Locker, Memory, OwnerId};
use lock_quorum::{Quorum, QuorumBuilder};
use tokio::time::timeout;

const TTL: Duration = Duration::from_secs(100);

/// Longer than a hand-over takes in memory, and shorter than any timer of a waiter.
const AT_ONCE: Duration = Duration::from_millis(2);

/// The order in which these tests' lock asks three members.
struct Members {
    memories: Vec<Memory>,
    first: usize,
}

impl Members {
    async fn new() -> Self {
        Self::of(3).await
    }

    async fn of(size: usize) -> Self {
        let memories: Vec<_> = (0..size).map(|_| Memory::new()).collect();
        let probe = quorum(&memories, |_, _| Injection::None).await;
        let held = win(&probe, claim()).await;
        let mut first = None;
        for nth in 0..size {
            let (this, before) =
                (holder(&memories[nth]).await, holder(&memories[(nth + size - 1) % size]).await);
            if this.is_some() && before.is_none() {
                first = Some(nth);
            }
        }
        probe.release(&held, ReleaseMode::now()).await.unwrap();
        Self { memories, first: first.expect("a majority was asked") }
    }

    async fn client(&self) -> Quorum {
        quorum(&self.memories, |_, _| Injection::None).await
    }

    async fn queued(&self) -> u64 {
        waiting_at(&self.memories[self.first]).await
    }
}

async fn quorum(
    memories: &[Memory],
    how: impl Fn(usize, Verb) -> Injection + Clone + Send + Sync + 'static,
) -> Quorum {
    let line = |(nth, memory): (usize, &Memory)| {
        let how = how.clone();
        FaultInjector::new(Arc::new(memory.clone()), move |call| how(nth, call.verb))
    };
    let members = memories.iter().enumerate().map(line);
    let builder = members.fold(Quorum::builder(), QuorumBuilder::member);
    builder.members_remember().build().await.expect("a quorum can be made")
}

fn name() -> LockName {
    LockName::new("n").expect("a good name")
}

fn claim() -> Claim {
    let mut claim = Claim::new(name(), OwnerId::mint(), TTL);
    claim.on_contention = OnContention::Queue;
    claim
}

#[track_caller]
fn granted(answer: Result<Attempt, Fault>) -> Grant {
    match answer {
        Ok(Attempt::Acquired(grant)) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

async fn win(quorum: &Quorum, mut claim: Claim) -> Claim {
    let grant = granted(quorum.try_acquire(&claim).await);
    claim.ticket = grant.ticket;
    claim
}

async fn holder(memory: &Memory) -> Option<OwnerId> {
    let state = memory.inspect(&name()).await.expect("memory can be inspected");
    state.holders.first().and_then(|holder| holder.owner)
}

/// Queues a claim, and waits in the background until it is to ask again.
async fn waiting(quorum: &Quorum) -> (Claim, tokio::task::JoinHandle<Moment>) {
    let waiter = claim();
    let answer = quorum.try_acquire(&waiter).await;
    assert!(matches!(answer, Ok(Attempt::Contended { .. })), "{answer:?}");
    let (quorum, asked) = (quorum.clone(), waiter.clone());
    let task = tokio::spawn(async move {
        quorum.wait(&asked).await.expect("it waits");
        Moment::now()
    });
    sleep(AT_ONCE).await;
    (waiter, task)
}

#[tokio::test(start_paused = true)]
async fn a_release_hands_the_vote_to_the_next_waiter() {
    let members = Members::new().await;
    let (ours, theirs) = (members.client().await, members.client().await);
    let held = win(&ours, claim()).await;
    let (waiter, woken) = waiting(&theirs).await;
    assert_eq!(members.queued().await, 1);
    let before = Moment::now();
    assert_eq!(ours.release(&held, ReleaseMode::now()).await.unwrap(), Release::Released);
    assert_eq!(holder(&members.memories[members.first]).await, Some(waiter.owner));
    assert!(woken.await.unwrap().saturating_since(before) <= AT_ONCE);
    let waiter = win(&theirs, waiter).await;
    assert_eq!(theirs.release(&waiter, ReleaseMode::now()).await.unwrap(), Release::Released);
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_first_come_first_served() {
    let members = Members::new().await;
    let mut held = win(&members.client().await, claim()).await;
    let mut releasing = members.client().await;
    let mut line = Vec::new();
    for _ in 0..8 {
        let client = members.client().await;
        let (waiter, woken) = waiting(&client).await;
        line.push((client, waiter, woken));
    }
    for (client, waiter, woken) in line {
        let before = Moment::now();
        releasing.release(&held, ReleaseMode::now()).await.unwrap();
        assert!(woken.await.unwrap().saturating_since(before) <= AT_ONCE);
        held = win(&client, waiter).await;
        releasing = client;
    }
}

/// A member in memory gives its vote to the entry; nothing else would take that back for a lease.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_gives_up_leaves_the_queue() {
    let members = Members::new().await;
    let (ours, theirs) = (members.client().await, members.client().await);
    let held = win(&ours, claim()).await;
    let (waiter, woken) = waiting(&theirs).await;
    woken.abort();
    theirs.release(&waiter, ReleaseMode::now()).await.unwrap();
    assert_eq!(members.queued().await, 0);
    ours.release(&held, ReleaseMode::now()).await.unwrap();
    assert_eq!(holder(&members.memories[members.first]).await, None);
}

/// The holder is gone from the other members, and the first one does not say so.
#[tokio::test(start_paused = true)]
async fn a_first_member_that_hangs_does_not_stop_its_queue() {
    let members = Members::new().await;
    let (first, hangs) = (members.first, Arc::new(AtomicBool::new(false)));
    let hanging = Arc::clone(&hangs);
    let how = move |nth, _| match nth == first && hanging.load(Ordering::SeqCst) {
        true => Injection::Hang,
        false => Injection::None,
    };
    let (ours, theirs) =
        (quorum(&members.memories, how.clone()).await, quorum(&members.memories, how).await);
    let held = win(&ours, claim()).await;
    let (waiter, woken) = waiting(&theirs).await;
    sleep(Duration::from_secs(1)).await;
    hangs.store(true, Ordering::SeqCst);
    let before = Moment::now();
    let releasing = tokio::spawn(async move { ours.release(&held, ReleaseMode::now()).await });
    let woken = timeout(TTL, woken).await.expect("it is woken").unwrap();
    granted(theirs.try_acquire(&waiter).await);
    let took = Moment::now().saturating_since(before);
    assert!(took < Duration::from_millis(500), "{took:?}, woken {woken:?}");
    releasing.await.unwrap().unwrap();
}

/// A claim that is granted without the first member would be in the way of the others there.
#[tokio::test(start_paused = true)]
async fn a_grant_without_the_first_member_leaves_its_queue() {
    let members = Members::new().await;
    let (ours, theirs) = (members.client().await, members.client().await);
    let held = win(&ours, claim()).await;
    sleep(Duration::from_millis(100)).await;
    let (waiter, woken) = waiting(&theirs).await;
    for nth in (0..3).filter(|&nth| nth != members.first) {
        members.memories[nth].evict(&name());
    }
    timeout(TTL / 2, woken).await.expect("it is woken by another member").unwrap();
    granted(theirs.try_acquire(&waiter).await);
    sleep(AT_ONCE).await;
    assert_eq!(members.queued().await, 0);
    drop(held);
}

/// The entry has the minimum token of the time at which it was queued.
#[tokio::test(start_paused = true)]
async fn a_vote_from_the_queue_has_the_token_of_the_others() {
    let members = Members::new().await;
    let attempts = Arc::new(AtomicU64::new(0));
    let (first, asked) = (members.first, Arc::clone(&attempts));
    let how = move |nth, verb| {
        asked.fetch_add(u64::from(nth == first && verb == Verb::TryAcquire), Ordering::SeqCst);
        Injection::None
    };
    let (ours, theirs) = (members.client().await, quorum(&members.memories, how).await);
    let held = win(&ours, claim()).await;
    let (waiter, woken) = waiting(&theirs).await;
    ours.release(&held, ReleaseMode::now()).await.unwrap();
    woken.await.unwrap();
    let before = attempts.load(Ordering::SeqCst);
    let token = granted(theirs.try_acquire(&waiter).await).token;
    assert_eq!(attempts.load(Ordering::SeqCst) - before, 1, "no second round is needed");
    for memory in &members.memories {
        let state = memory.inspect(&name()).await.unwrap();
        assert!(state.holders.iter().all(|holder| holder.token == token), "{state:?}");
    }
}

async fn waiting_at(memory: &Memory) -> u64 {
    memory.inspect(&name()).await.expect("memory can be inspected").waiting.unwrap_or(0)
}

/// Five members, of which the second one is down.
#[tokio::test(start_paused = true)]
async fn a_second_member_that_fails_hides_no_first_one_that_hangs() {
    let members = Members::of(5).await;
    let (first, second) = (members.first, (members.first + 1) % 5);
    let hangs = Arc::new(AtomicBool::new(false));
    let hanging = Arc::clone(&hangs);
    let how = move |nth, _| match nth == first && hanging.load(Ordering::SeqCst) {
        _ if nth == second => Injection::Refuse(FaultKind::Unavailable),
        true => Injection::Hang,
        false => Injection::None,
    };
    let (ours, theirs) =
        (quorum(&members.memories, how.clone()).await, quorum(&members.memories, how).await);
    let held = win(&ours, claim()).await;
    let (waiter, woken) = waiting(&theirs).await;
    sleep(Duration::from_secs(1)).await;
    hangs.store(true, Ordering::SeqCst);
    let before = Moment::now();
    let releasing = tokio::spawn(async move { ours.release(&held, ReleaseMode::now()).await });
    timeout(TTL, woken).await.expect("it is woken").unwrap();
    granted(theirs.try_acquire(&waiter).await);
    let took = Moment::now().saturating_since(before);
    assert!(took < Duration::from_secs(1), "{took:?}");
    releasing.await.unwrap().unwrap();
}

/// Such a vote is left by a client that cannot reach that member, and releases at the others.
#[tokio::test(start_paused = true)]
async fn a_stray_vote_at_the_first_member_stops_no_waiters() {
    let members = Members::new().await;
    win_at(&members.memories[members.first], claim()).await;
    let began = Moment::now();
    served(&members, 8, 1, Duration::from_millis(1), Arc::default()).await;
    let took = Moment::now().saturating_since(began);
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn long_holds_cost_no_more_requests() {
    let members = Members::new().await;
    let requests = Arc::new(AtomicU64::new(0));
    served(&members, 8, 10, Duration::from_millis(500), Arc::clone(&requests)).await;
    let each = requests.load(Ordering::SeqCst) / 80;
    assert!(each <= 16, "{each} requests for each grant");
}

/// The release has arrived at the first member, and not yet at the others. The vote does not go
/// from waiter to waiter.
#[tokio::test(start_paused = true)]
async fn a_waiter_keeps_the_vote_of_the_first_member() {
    let members = Members::new().await;
    let held = win(&members.client().await, claim()).await;
    sleep(Duration::from_millis(100)).await;
    members.memories[members.first].evict(&name());
    let requests = Arc::new(AtomicU64::new(0));
    let waiting = served(&members, 4, 1, Duration::ZERO, Arc::clone(&requests));
    assert!(timeout(Duration::from_millis(500), waiting).await.is_err());
    let requests = requests.load(Ordering::SeqCst);
    assert!(requests <= 40, "{requests} requests");
    drop(held);
}

/// The first member has forgotten the holder, and waiters want its vote.
#[tokio::test(start_paused = true)]
async fn a_holder_regains_the_first_vote_while_others_wait() {
    for waiters in [1, 3] {
        let members = Members::new().await;
        let locks = Locker::new(members.client().await);
        let held = locks.lock("n").unwrap().ttl(TTL / 10).acquire().await.unwrap();
        sleep(Duration::from_millis(100)).await;
        members.memories[members.first].evict(&name());
        let requests = Arc::new(AtomicU64::new(0));
        let waiting = served(&members, waiters, 1, Duration::ZERO, Arc::clone(&requests));
        assert!(timeout(TTL / 5, waiting).await.is_err());
        for memory in &members.memories {
            assert_eq!(holder(memory).await, Some(*held.owner()));
        }
        let requests = requests.load(Ordering::SeqCst);
        assert!(requests <= 20 * waiters, "{requests} requests of {waiters} waiters");
    }
}

/// The attempt of a waiter has no answer. It is granted without the first member, and renews.
#[tokio::test(start_paused = true)]
async fn a_claim_regains_the_first_member_after_an_unanswered_attempt() {
    let members = Members::new().await;
    let (first, fails) = (members.first, Arc::new(AtomicBool::new(false)));
    let failing = Arc::clone(&fails);
    let theirs = quorum(&members.memories, move |nth, verb| match verb {
        Verb::TryAcquire if nth == first && failing.load(Ordering::SeqCst) => Injection::LoseReply,
        _ => Injection::None,
    });
    let locks = Locker::new(theirs.await);
    let ours = members.client().await;
    let held = win(&ours, claim()).await;
    let lock = locks.lock("n").unwrap().ttl(TTL);
    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    sleep(Duration::from_millis(200)).await;
    fails.store(true, Ordering::SeqCst);
    ours.release(&held, ReleaseMode::now()).await.unwrap();
    let guard = timeout(TTL, waiting).await.expect("it is served").unwrap();
    fails.store(false, Ordering::SeqCst);
    sleep(TTL * 2).await;
    for memory in &members.memories {
        assert_eq!(holder(memory).await, Some(*guard.owner()));
    }
}

/// The vote of another claim is left at the first member.
#[tokio::test(start_paused = true)]
async fn a_stray_vote_and_a_hung_member_of_five_stop_no_waiter() {
    for hung in 1..5 {
        let members = Members::of(5).await;
        let (hung, hangs) = ((members.first + hung) % 5, Arc::new(AtomicBool::new(false)));
        let hanging = Arc::clone(&hangs);
        let how = move |nth, _| match nth == hung && hanging.load(Ordering::SeqCst) {
            true => Injection::Hang,
            false => Injection::None,
        };
        win_at(&members.memories[members.first], claim()).await;
        let ours = Locker::new(quorum(&members.memories, how.clone()).await);
        let theirs = Locker::new(quorum(&members.memories, how).await);
        let held = ours.lock("n").unwrap().ttl(TTL).acquire().await.unwrap();
        let lock = theirs.lock("n").unwrap().ttl(TTL);
        let waiting = tokio::spawn(async move { drop(lock.acquire().await.unwrap()) });
        sleep(Duration::from_millis(500)).await;
        hangs.store(true, Ordering::SeqCst);
        sleep(Duration::from_secs(2)).await;
        let began = Moment::now();
        held.release().await.unwrap();
        timeout(TTL, waiting).await.expect("it is served").unwrap();
        let took = Moment::now().saturating_since(began);
        assert!(took < Duration::from_secs(4), "{took:?} while member {hung} hangs");
    }
}

/// A claim was refused by the first two members, and its withdrawal at the third arrives 500 ms
/// later.
async fn with_a_late_withdrawal() -> (Members, Quorum, Claim) {
    let members = Members::new().await;
    let [first, second, third] = [0, 1, 2].map(|nth| (members.first + nth) % 3);
    let late = Arc::new(AtomicBool::new(true));
    let is_late = Arc::clone(&late);
    let how = move |nth, verb| match nth == third && verb == Verb::Release {
        true if is_late.load(Ordering::SeqCst) => Injection::LandLate(Duration::from_millis(500)),
        _ => Injection::None,
    };
    let ours = quorum(&members.memories, how).await;
    let mut refused = claim();
    refused.on_contention = OnContention::Return;
    win_at(&members.memories[first], claim()).await;
    win_at(&members.memories[second], claim()).await;
    let answer = ours.try_acquire(&refused).await;
    assert!(matches!(answer, Ok(Attempt::Contended { .. })), "{answer:?}");
    late.store(false, Ordering::SeqCst);
    members.memories[first].evict(&name());
    (members, ours, refused)
}

#[tokio::test(start_paused = true)]
async fn a_release_that_arrives_late_ends_no_vote_that_counts() {
    let (members, ours, again) = with_a_late_withdrawal().await;
    while !matches!(ours.try_acquire(&again).await, Ok(Attempt::Acquired(_))) {
        sleep(Duration::from_millis(100)).await;
    }
    sleep(Duration::from_secs(1)).await;
    for nth in [0, 2].map(|nth| (members.first + nth) % 3) {
        assert_eq!(holder(&members.memories[nth]).await, Some(again.owner));
    }
}

/// The vote of the round before is still there at the third member when the second one forgets.
#[tokio::test(start_paused = true)]
async fn a_vote_that_a_late_release_will_end_replaces_no_other() {
    let (members, ours, again) = with_a_late_withdrawal().await;
    let second = &members.memories[(members.first + 1) % 3];
    second.evict(&name());
    let held = win(&ours, again).await;
    sleep(Duration::from_millis(50)).await;
    second.evict(&name());
    let answer = ours.renew(&[&held]).await.pop().expect("one answer for one claim");
    assert!(matches!(answer, Ok(Renewal::NotHeld)), "{answer:?}");
}

/// Releases of one client fail at two members, and arrive there. Its claim asks those members again
/// when the bound of a call has passed.
#[tokio::test(start_paused = true)]
async fn unanswered_withdrawals_delay_a_claim_for_one_bound() {
    for _ in 0..8 {
        let members = Members::new().await;
        let first = members.first;
        let ours = quorum(&members.memories, move |nth, verb| match verb {
            Verb::Release if nth != first => Injection::LandLate(Duration::from_millis(10)),
            _ => Injection::None,
        });
        let locks = Locker::new(ours.await);
        let stray = win_at(&members.memories[first], claim()).await;
        let lock = locks.lock("n").unwrap().ttl(TTL);
        let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
        sleep(Duration::from_secs(3)).await;
        members.memories[first].release(&stray, ReleaseMode::now()).await.unwrap();
        let began = Moment::now();
        waiting.await.unwrap().unwrap();
        let took = Moment::now().saturating_since(began);
        assert!(took < Duration::from_secs(4), "{took:?}");
    }
}

/// The holder has no vote of the second member until it renews.
#[tokio::test(start_paused = true)]
async fn a_waiter_does_not_poll_a_member_without_the_vote() {
    let members = Members::new().await;
    let second = (members.first + 1) % 3;
    let ours = quorum(&members.memories, move |nth, verb| match nth == second {
        true if verb == Verb::TryAcquire => Injection::Refuse(FaultKind::Unavailable),
        _ => Injection::None,
    });
    win(&ours.await, claim()).await;
    let requests = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&requests);
    let theirs = quorum(&members.memories, move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        Injection::None
    });
    let locks = Locker::new(theirs.await);
    let lock = locks.lock("n").unwrap().ttl(TTL);
    assert!(timeout(TTL / 4, lock.acquire()).await.is_err());
    let requests = requests.load(Ordering::SeqCst);
    assert!(requests <= 15, "{requests} requests");
}

/// The vote from the queue has an old token, and the member refuses the new one. The claim leaves
/// that queue, and renews meanwhile.
#[tokio::test(start_paused = true)]
async fn a_vote_that_is_given_back_confirms_no_renewal() {
    let members = Members::new().await;
    let [first, second, third] = [0, 1, 2].map(|nth| (members.first + nth) % 3);
    let (handed_over, asked) = (Arc::new(AtomicBool::new(false)), AtomicU64::new(0));
    let fails = Arc::clone(&handed_over);
    let asked = Arc::new(asked);
    let ours = members.client().await;
    let theirs = quorum(&members.memories, move |nth, verb| match (nth, verb) {
        _ if !fails.load(Ordering::SeqCst) => Injection::None,
        (nth, Verb::TryAcquire) if nth == first && asked.fetch_add(1, Ordering::SeqCst) > 0 => {
            Injection::Refuse(FaultKind::Unavailable)
        }
        (nth, Verb::Renew) if nth == third => Injection::Refuse(FaultKind::Unavailable),
        _ => Injection::None,
    });
    let theirs = theirs.await;
    let held = win(&ours, claim()).await;
    let (waiter, woken) = waiting(&theirs).await;
    let token = members.memories[second].inspect(&name()).await.unwrap().holders[0].token;
    let ahead = token.expect("a holder has one").backend_number() + 5 * 3600 * 1_000_000;
    for memory in [second, third].map(|nth| &members.memories[nth]) {
        memory.evict(&name());
        let mut later = claim();
        later.min_token = FencingToken::from_backend(ahead);
        let later = win_at(memory, later).await;
        memory.release(&later, ReleaseMode::now()).await.unwrap();
    }
    ours.release(&held, ReleaseMode::now()).await.unwrap();
    woken.await.unwrap();
    handed_over.store(true, Ordering::SeqCst);
    let waiter = win(&theirs, waiter).await;
    let answer = theirs.renew(&[&waiter]).await.pop().expect("one answer for one claim");
    sleep(AT_ONCE).await;
    if matches!(answer, Ok(Renewal::Held(_))) {
        assert_eq!(holder(&members.memories[first]).await, Some(waiter.owner), "{answer:?}");
    }
}

/// Each client finds other members slow, and so asks them in another order.
#[tokio::test(start_paused = true)]
async fn clients_that_disagree_on_slow_members_are_served() {
    const LATE: Duration = Duration::from_millis(30);
    // Claims that wait for each other's votes give them back after a second.
    const LONGEST_GAP: Duration = Duration::from_millis(850);
    let members = Members::new().await;
    let granted = Arc::new(Mutex::new(vec![Moment::now()]));
    let random = Arc::new(Mutex::new(fastrand::Rng::with_seed(2)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..12 {
        let random = Arc::clone(&random);
        let how = move |_, verb| match random.lock().unwrap().u64(..8) {
            _ if matches!(verb, Verb::Wait | Verb::WaitLost) => Injection::None,
            0 => Injection::DelayReply(LATE),
            nth => Injection::DelayRequest(Duration::from_micros(200 + 50 * nth)),
        };
        let (locks, granted) =
            (Locker::new(quorum(&members.memories, how).await), Arc::clone(&granted));
        tasks.spawn(async move {
            for _ in 0..40 {
                let guard = locks.lock("n").unwrap().ttl(TTL).acquire().await.unwrap();
                granted.lock().unwrap().push(Moment::now());
                guard.release().await.unwrap();
            }
        });
    }
    let began = Moment::now();
    tasks.join_all().await;
    let took = Moment::now().saturating_since(began);
    assert!(took < TTL / 3, "{took:?}");
    let granted = granted.lock().unwrap();
    let gaps = granted.windows(2).map(|two| two[1].saturating_since(two[0]));
    let longest = gaps.max().expect("there were grants");
    assert!(longest < LONGEST_GAP, "{longest:?}");
}

/// Lets clients acquire the lock this often each, and counts their requests.
async fn served(
    members: &Members,
    clients: u64,
    rounds: usize,
    hold: Duration,
    requests: Arc<AtomicU64>,
) {
    let mut tasks = tokio::task::JoinSet::new();
    for nth in 0..clients {
        let counted = Arc::clone(&requests);
        let how = move |_, verb| match verb {
            Verb::Wait | Verb::WaitLost => Injection::None,
            _ => {
                let before = counted.fetch_add(1, Ordering::SeqCst);
                // No two requests are equally far.
                Injection::DelayRequest(Duration::from_micros(200 + (before * 61 + nth * 17) % 300))
            }
        };
        let locks = Locker::new(quorum(&members.memories, how).await);
        tasks.spawn(async move {
            for _ in 0..rounds {
                let guard = locks.lock("n").unwrap().ttl(TTL).acquire().await.unwrap();
                sleep(hold).await;
                guard.release().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
}

async fn win_at(memory: &Memory, mut claim: Claim) -> Claim {
    let grant = granted(memory.try_acquire(&claim).await);
    claim.ticket = grant.ticket;
    claim
}
