//! The rules of the crate's documentation, one by one, on members in memory.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{
    Attempt, Backend, Claim, Fault, FaultKind, Grant, Lease, Release, ReleaseMode, Renewal,
};
use lock_core::clock::{Moment, sleep};
use lock_core::faults::{FaultInjector, Injection, Verb};
use lock_core::layer::{Layer, Layered};
use lock_core::{
    Detached, Effect, Error, ErrorKind, FencingToken, LockName, Locker, Memory, OwnerId,
};
use lock_quorum::{Quorum, QuorumBuilder};
use tokio::task::JoinHandle;

const TTL: Duration = Duration::from_secs(10);

/// Servers, each with a connection that can be cut.
struct Members(Vec<(Memory, Arc<AtomicBool>)>);

impl Members {
    fn of(size: usize) -> Self {
        Self((0..size).map(|_| (Memory::new(), Arc::default())).collect())
    }

    fn builder(&self) -> QuorumBuilder {
        let reach = |(memory, cut): &(Memory, Arc<AtomicBool>)| {
            let cut = Arc::clone(cut);
            FaultInjector::new(Arc::new(memory.clone()), move |_| {
                match cut.load(Ordering::SeqCst) {
                    true => Injection::Refuse(FaultKind::Unavailable),
                    false => Injection::None,
                }
            })
        };
        self.0.iter().map(reach).fold(Quorum::builder(), QuorumBuilder::member).members_remember()
    }

    async fn quorum(&self) -> Quorum {
        self.builder().build().await.expect("a quorum can be made")
    }

    /// Makes only these members reachable from now on.
    fn reach(&self, members: &[usize]) {
        for (member, (_, cut)) in self.0.iter().enumerate() {
            cut.store(!members.contains(&member), Ordering::SeqCst);
        }
    }

    fn reach_all(&self) {
        self.0.iter().for_each(|(_, cut)| cut.store(false, Ordering::SeqCst));
    }

    /// Makes a member give a token that is hours ahead of the clock.
    async fn be_ahead(&self, member: usize, hours: u64) {
        let mut ahead = claim();
        let number = u64::try_from(lock_core::clock::wall().as_micros()).unwrap();
        ahead.min_token = FencingToken::from_backend(number + hours * 3600 * 1_000_000);
        let member = &self.0[member].0;
        granted(member.try_acquire(&ahead).await);
        member.release(&ahead, ReleaseMode::now()).await.unwrap();
    }

    async fn holder(&self, member: usize) -> Option<OwnerId> {
        let state = self.0[member].0.inspect(&name()).await.expect("memory can be looked at");
        state.holders.first().and_then(|holder| holder.owner)
    }
}

fn name() -> LockName {
    LockName::new("n").expect("a good name")
}

fn claim() -> Claim {
    Claim::new(name(), OwnerId::mint(), TTL)
}

#[track_caller]
fn granted(answer: Result<Attempt, Fault>) -> Grant {
    match answer {
        Ok(Attempt::Acquired(grant)) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

/// Acquires the claim at these members with one token that is far ahead of their clocks.
async fn granted_ahead<'m>(
    claim: &mut Claim,
    members: impl IntoIterator<Item = &'m Memory>,
) -> Option<FencingToken> {
    let number = u64::try_from(lock_core::clock::wall().as_micros()).unwrap();
    claim.min_token = claim.min_token.max(FencingToken::from_backend(number + 3600 * 1_000_000));
    let mut tokens = Vec::new();
    for member in members {
        tokens.push(granted(member.try_acquire(claim).await).token);
    }
    assert!(tokens.iter().all(|token| *token == tokens[0]), "{tokens:?}");
    tokens[0]
}

/// Returns the lock of the claim for a process that knows its owner id alone.
fn passed_on(claim: &Claim) -> Detached {
    Detached::new(claim.name.clone(), claim.owner, claim.ttl)
}

async fn win(quorum: &Quorum, claim: &mut Claim) -> FencingToken {
    let grant = granted(quorum.try_acquire(claim).await);
    claim.ticket = grant.ticket;
    grant.token.expect("members in memory have tokens")
}

async fn renew(quorum: &Quorum, claim: &Claim) -> Result<Renewal, Fault> {
    quorum.renew(&[claim]).await.pop().expect("one answer for one claim")
}

/// Makes a quorum of which one member answers attempts this late.
async fn with_late_answers(members: &[Memory], late: usize, by: Duration) -> Quorum {
    let builder = late_answers(members, late, by).members_remember();
    builder.build().await.expect("a quorum can be made")
}

fn late_answers(members: &[Memory], late: usize, by: Duration) -> QuorumBuilder {
    let faulty = |(nth, member): (usize, &Memory)| {
        FaultInjector::new(Arc::new(member.clone()), move |call| match call.verb {
            Verb::TryAcquire if nth == late => Injection::DelayReply(by),
            _ => Injection::None,
        })
    };
    members.iter().enumerate().map(faulty).fold(Quorum::builder(), QuorumBuilder::member)
}

/// Lets the background tasks end.
async fn settle() {
    sleep(Duration::from_millis(100)).await;
}

#[tokio::test(start_paused = true)]
async fn an_even_number_of_members_is_refused() {
    for size in [0, 2, 4] {
        let error = Members::of(size).builder().build().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{size}: {error}");
    }
    for size in [1, 3, 5] {
        Members::of(size).quorum().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_majority_of_the_configured_members_is_needed_not_of_the_reachable() {
    let members = Members::of(5);
    let quorum = members.quorum().await;
    members.reach(&[0, 1]);
    let fault = quorum.try_acquire(&claim()).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unavailable);
    members.reach(&[0, 1, 4]);
    // No vote of the attempt that had two is left.
    win(&quorum, &mut claim()).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_refused_by_a_majority_keeps_no_vote() {
    let members = Members::of(3);
    let quorum = members.quorum().await;
    members.reach(&[0, 1]);
    win(&quorum, &mut claim()).await;
    members.reach_all();
    let answer = quorum.try_acquire(&claim()).await;
    assert!(matches!(answer, Ok(Attempt::Contended { .. })), "{answer:?}");
    assert_eq!(members.holder(2).await, None);
}

/// Keeps trying while one member still has the vote of a claim that is being released, and one
/// answers a little late: the lock is free.
#[tokio::test(start_paused = true)]
async fn a_member_that_is_a_little_late_is_not_contention() {
    for (held, late) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        let members: Vec<_> = (0..3).map(|_| Memory::new()).collect();
        granted(members[held].try_acquire(&claim()).await);
        let quorum = with_late_answers(&members, late, Duration::from_millis(50)).await;
        granted(quorum.try_acquire(&claim()).await);
    }
}

/// Covers a member that hangs, and another one with the vote of another claim. So the fifth member
/// is asked long after the others have answered.
#[tokio::test(start_paused = true)]
async fn a_member_that_is_asked_late_has_time_to_answer() {
    let orders = (0..5).flat_map(|hung| (0..5).map(move |held| (hung, held)));
    for (hung, held) in orders.filter(|(hung, held)| hung != held) {
        let members: Vec<_> = (0..5).map(|_| Memory::new()).collect();
        granted(members[held].try_acquire(&claim()).await);
        let far = |(nth, member): (usize, &Memory)| {
            FaultInjector::new(Arc::new(member.clone()), move |call| match call.verb {
                Verb::TryAcquire if nth == hung => Injection::Hang,
                _ => Injection::DelayReply(Duration::from_millis(1)),
            })
        };
        let builder = members.iter().enumerate().map(far);
        let builder = builder.fold(Quorum::builder(), QuorumBuilder::member);
        let quorum = builder.members_remember().build().await.unwrap();
        let mut claim = claim();
        claim.name = LockName::new("other").unwrap();
        // From then on only as many members are asked as are needed.
        win(&quorum, &mut claim).await;
        granted(quorum.try_acquire(&self::claim()).await);
    }
}

/// Finds contention as soon as one member refuses and one is late: without a majority, the answer
/// of the late one does not matter.
#[tokio::test(start_paused = true)]
async fn a_refused_claim_keeps_no_vote_where_the_answer_is_late() {
    for (held, late) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
        let members: Vec<_> = (0..3).map(|_| Memory::new()).collect();
        granted(members[held].try_acquire(&claim()).await);
        let quorum = with_late_answers(&members, late, TTL / 20).await;
        let answer = quorum.try_acquire(&claim()).await;
        assert!(matches!(answer, Ok(Attempt::Contended { .. })), "{answer:?}");
        sleep(TTL / 5).await;
        for (nth, member) in members.iter().enumerate().filter(|&(nth, _)| nth != held) {
            let state = member.inspect(&name()).await.unwrap();
            assert!(state.holders.is_empty(), "a vote stays at {nth}, where {late} is late");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_server_under_two_addresses_is_refused() {
    let (one, other) = (Memory::new(), Memory::new());
    let builder = Quorum::builder().member(one.clone()).member(other).member(one);
    let error = builder.members_remember().build().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let text = error.to_string();
    assert!(text.contains("member 1 (memory) and member 3 (memory)"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn one_server_under_two_addresses_is_counted_once_if_it_comes_later() {
    a_twin_that_comes_later_is_not_counted(true).await;
    a_twin_that_comes_later_is_not_counted(false).await;
}

/// Adds the twin behind the known member, or before it.
async fn a_twin_that_comes_later_is_not_counted(behind: bool) {
    let (one, other) = (Memory::new(), Memory::new());
    let up = Arc::new(AtomicBool::new(false));
    let (reached, twin) = (Arc::clone(&up), one.clone());
    let connect = move || {
        let (up, twin) = (reached.load(Ordering::SeqCst), twin.clone());
        async move {
            match up {
                true => Ok(Arc::new(twin) as Arc<dyn Backend>),
                false => Err(Error::new(ErrorKind::Unavailable, "not there yet")),
            }
        }
    };
    let builder = match behind {
        true => Quorum::builder().member(one).member(other.clone()).member_by("late", connect),
        false => Quorum::builder().member_by("late", connect).member(other.clone()).member(one),
    };
    let quorum = builder.members_remember().build().await.unwrap();
    up.store(true, Ordering::SeqCst);
    // The second member's vote is taken, so it is between the first and its twin.
    let mut holder = Claim::new(name(), OwnerId::mint(), TTL * 10);
    granted(other.try_acquire(&holder).await);
    for _ in 0..3 {
        let answer = quorum.try_acquire(&claim()).await;
        assert!(
            !matches!(answer, Ok(Attempt::Acquired(_))),
            "one server has voted twice: {answer:?}"
        );
        sleep(Duration::from_secs(1)).await;
    }
    holder.ticket = None;
    other.release(&holder, ReleaseMode::now()).await.unwrap();
    win(&quorum, &mut claim()).await;
}

#[tokio::test(start_paused = true)]
async fn a_member_that_was_started_lately_is_not_counted() {
    let old = [Memory::new(), Memory::new()];
    sleep(Duration::from_secs(70)).await;
    let builder = old.iter().cloned().fold(Quorum::builder(), QuorumBuilder::member);
    let quorum = builder.member(Memory::new()).build().await.unwrap();
    let mut both = claim();
    win(&quorum, &mut both).await;
    quorum.release(&both, ReleaseMode::now()).await.unwrap();

    // With one of the old members only, there is no majority until the new one is as old as leases
    // are long.
    let taken = claim();
    granted(old[0].try_acquire(&taken).await);
    let answer = quorum.try_acquire(&claim()).await;
    assert!(!matches!(answer, Ok(Attempt::Acquired(_))), "{answer:?}");
    for _ in 0..14 {
        sleep(TTL / 2).await;
        assert!(matches!(old[0].renew(&[&taken]).await[0], Ok(Renewal::Held(_))));
    }
    win(&quorum, &mut claim()).await;
}

/// Asks the member that makes the majority, however often it was late, because a vote that is not
/// counted replaces none.
#[tokio::test(start_paused = true)]
async fn a_late_member_counts_where_another_one_does_not() {
    let old = [Memory::new(), Memory::new()];
    sleep(Duration::from_secs(70)).await;
    let members = [old[0].clone(), old[1].clone(), Memory::new()];
    for late in 0..2 {
        let quorum =
            late_answers(&members, late, Duration::from_millis(300)).build().await.unwrap();
        for _ in 0..3 {
            let mut won = claim();
            win(&quorum, &mut won).await;
            quorum.release(&won, ReleaseMode::now()).await.unwrap();
        }
    }
}

/// Asks a member that lags once a lock is held, so that the lock survives another member.
#[tokio::test(start_paused = true)]
async fn a_member_that_lags_has_the_lock_before_its_first_renewal() {
    for late in 0..3 {
        let members = [Memory::new(), Memory::new(), Memory::new()];
        let quorum = with_late_answers(&members, late, Duration::from_millis(50)).await;
        let mut first = claim();
        win(&quorum, &mut first).await;
        // The member answers this in time, so it does not hang.
        quorum.release(&first, ReleaseMode::now()).await.unwrap();
        settle().await;
        let mut second = claim();
        win(&quorum, &mut second).await;
        settle().await;
        let holders = members[late].inspect(&name()).await.unwrap().holders;
        let holder = holders.first().and_then(|holder| holder.owner);
        assert_eq!(holder, Some(second.owner), "member {late}");
    }
}

#[tokio::test(start_paused = true)]
async fn leases_are_no_longer_than_a_restarted_member_stays_out() {
    let members = Members::of(3);
    let quorum = members.builder().longest_lease(TTL).build().await.unwrap();
    assert_eq!(quorum.capabilities().ttl_max, TTL);
    let error = Locker::new(quorum).lock("n").unwrap().ttl(TTL * 2).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
}

/// Renews a minimum hold until it is over, since it may be far longer than the longest lease. A
/// member that restarts meanwhile counts again, and no vote is in its way.
#[tokio::test(start_paused = true)]
async fn a_minimum_hold_that_outlasts_the_longest_lease_is_kept_although_a_member_restarts() {
    let members: Vec<_> = (0..3).map(|_| Memory::new()).collect();
    sleep(TTL * 2).await;
    let builder = || {
        let builder = members.iter().cloned().fold(Quorum::builder(), QuorumBuilder::member);
        builder.longest_lease(TTL).build()
    };
    let (ours, theirs) = (builder().await.unwrap(), builder().await.unwrap());
    let lock = Locker::new(ours).lock("n").unwrap().ttl(TTL);
    let guard = lock.min_hold(TTL * 6).acquire().await.unwrap();
    let began = Moment::now();
    settle().await;
    drop(guard);
    for member in &members {
        sleep(TTL * 5 / 4).await;
        member.lose_data();
    }
    let rival = Locker::new(theirs);
    let _guard = rival.lock("n").unwrap().ttl(TTL).acquire().await.unwrap();
    let kept = Moment::now().saturating_since(began);
    assert!(kept >= TTL * 6, "somebody else had it after {kept:?}");
}

/// Grants for as long as a majority keeps the lock, counted from before the first request.
#[tokio::test(start_paused = true)]
async fn the_lease_is_that_of_the_majority_that_is_left_last() {
    let slow = |delay| {
        FaultInjector::new(Arc::new(Memory::new()), move |call| match call.verb {
            Verb::TryAcquire => Injection::DelayReply(delay),
            _ => Injection::None,
        })
    };
    let millis = Duration::from_millis;
    let builder = [millis(200), millis(300), millis(900)].map(slow).into_iter();
    let builder = builder.fold(Quorum::builder(), QuorumBuilder::member).members_remember();
    let quorum = builder.build().await.unwrap();
    let before = Moment::now();
    let grant = granted(quorum.try_acquire(&claim()).await);
    let took = Moment::now().saturating_since(before);
    assert!((millis(300)..millis(350)).contains(&took), "the slowest was waited for: {took:?}");
    let Lease::For(lease) = grant.lease else { panic!("members in memory have leases") };
    assert!(grant.since + lease <= before + TTL, "counted from {:?}", grant.since);
}

#[tokio::test(start_paused = true)]
async fn a_renewal_needs_a_majority_and_wins_free_votes_back() {
    let members = Members::of(3);
    let quorum = members.quorum().await;
    let mut held = claim();
    let token = win(&quorum, &mut held).await;
    settle().await;
    members.0[1].0.evict(&name());
    let Ok(Renewal::Held(grant)) = renew(&quorum, &held).await else { panic!("lost") };
    assert_eq!(grant.token, Some(token));
    settle().await;
    assert_eq!(members.holder(1).await, Some(held.owner), "not won back");
    // It stores no less than the token, or the next grant might not exceed it.
    let there = members.0[1].0.inspect(&name()).await.unwrap().holders[0].token;
    assert!(there >= Some(token), "{there:?}");
}

#[tokio::test(start_paused = true)]
async fn the_vote_of_another_claim_is_not_won_back() {
    let members = Members::of(3);
    let quorum = members.quorum().await;
    let mut held = claim();
    win(&quorum, &mut held).await;
    settle().await;
    members.0[1].0.evict(&name());
    let foreign = claim();
    granted(members.0[1].0.try_acquire(&foreign).await);
    assert!(matches!(renew(&quorum, &held).await, Ok(Renewal::Held(_))));
    settle().await;
    assert_eq!(members.holder(1).await, Some(foreign.owner));
}

/// Loses the lock after one member forgets the claim and grants it again, and then another one
/// forgets it. Two members have a vote of the claim, and no majority has had it all the time.
#[tokio::test(start_paused = true)]
async fn two_failures_never_add_up_to_a_majority() {
    let members = Members::of(3);
    let quorum = members.quorum().await;
    let mut held = claim();
    win(&quorum, &mut held).await;
    settle().await;
    members.0[0].0.evict(&name());
    assert!(matches!(renew(&quorum, &held).await, Ok(Renewal::Held(_))));
    settle().await;
    assert_eq!(members.holder(0).await, Some(held.owner), "not won back");
    // Before the next renewal has confirmed that the other two still had it.
    members.0[1].0.evict(&name());
    let answer = renew(&quorum, &held).await;
    assert!(matches!(answer, Ok(Renewal::NotHeld)), "{answer:?}");
}

/// Wins no vote back for a client that only renews a lock that was won elsewhere. Such a client
/// does not remember which votes are old, and so two failures do not add up. The client that keeps
/// the lock wins votes back.
#[tokio::test(start_paused = true)]
async fn a_client_that_renews_a_claim_won_elsewhere_wins_no_vote_back() {
    for keeps_it in [false, true] {
        let members = Members::of(3);
        let mut held = claim();
        win(&members.quorum().await, &mut held).await;
        settle().await;
        held.ticket = None;
        let quorum = members.quorum().await;
        let Ok(Renewal::Held(grant)) = renew(&quorum, &held).await else { panic!("it is held") };
        if keeps_it {
            held.ticket = grant.ticket;
        }
        members.0[0].0.evict(&name());
        for _ in 0..2 {
            settle().await;
            assert!(matches!(renew(&quorum, &held).await, Ok(Renewal::Held(_))));
        }
        settle().await;
        assert_eq!(members.holder(0).await, keeps_it.then_some(held.owner));
        members.0[1].0.evict(&name());
        let answer = renew(&quorum, &held).await.unwrap();
        assert_eq!(matches!(answer, Renewal::Held(_)), keeps_it, "{answer:?}");
    }
}

/// Learns the token of a lock that another process has acquired. One member has stored a lower one
/// than the two others, since its vote came too late for the grant, and another member answers
/// late. The holder is not notified of a loss when other members answer the next renewals.
#[tokio::test(start_paused = true)]
async fn an_adopted_lock_has_the_token_of_its_majority() {
    for low in 0..3 {
        let members: Vec<_> = (0..3).map(|_| Memory::new()).collect();
        let (mut held, late) = (claim(), Arc::new(AtomicUsize::new((low + 1) % 3)));
        let others = [(low + 1) % 3, (low + 2) % 3];
        granted(members[low].try_acquire(&held).await);
        let token = granted_ahead(&mut held, others.map(|member| &members[member])).await;
        let slow = Arc::clone(&late);
        let quorum = injected(&members, move |member, verb| {
            match verb == Verb::Renew && member == slow.load(Ordering::SeqCst) {
                true => Injection::DelayReply(Duration::from_millis(50)),
                false => Injection::None,
            }
        });
        let locks = Locker::new(quorum.build().await.unwrap());
        let guard = locks.adopt(passed_on(&held)).await.unwrap();
        assert_eq!(guard.fencing_token(), token, "member {low} has a lower one");
        for member in [low, others[0], others[1]] {
            settle().await;
            late.store(member, Ordering::SeqCst);
            guard.verify().await.unwrap();
        }
        // The vote that is won back has no lower token again.
        settle().await;
        members[low].evict(&name());
        guard.verify().await.unwrap();
        settle().await;
        let state = members[low].inspect(&name()).await.unwrap();
        assert_eq!(state.holders[0].token, token);
        guard.release().await.unwrap();
    }
}

/// Learns the token also of five members, of which two have stored a lower one.
#[tokio::test(start_paused = true)]
async fn an_adopted_lock_of_five_members_has_the_token_of_its_majority() {
    for late in 0..5 {
        let members: Vec<_> = (0..5).map(|_| Memory::new()).collect();
        let mut held = claim();
        for low in &members[3..] {
            granted(low.try_acquire(&held).await);
        }
        let token = granted_ahead(&mut held, members[..3].iter()).await;
        let quorum = injected(&members, move |member, verb| match verb == Verb::Renew {
            true if member == late => Injection::DelayReply(Duration::from_millis(50)),
            _ => Injection::None,
        });
        let locks = Locker::new(quorum.build().await.unwrap());
        let guard = locks.adopt(passed_on(&held)).await.unwrap();
        assert_eq!(guard.fencing_token(), token, "member {late} is late");
    }
}

/// Adopts a lock after an adoption that was dropped while it waited for the token.
#[tokio::test(start_paused = true)]
async fn an_adoption_that_is_dropped_leaves_the_lock_detached() {
    let members: Vec<_> = (0..3).map(|_| Memory::new()).collect();
    let mut held = claim();
    granted(members[0].try_acquire(&held).await);
    let token = granted_ahead(&mut held, members[1..].iter()).await;
    let quorum = injected(&members, |member, verb| match (member, verb) {
        (2, Verb::Renew) => Injection::DelayReply(Duration::from_millis(50)),
        _ => Injection::None,
    });
    let locks = Locker::new(quorum.build().await.unwrap());
    for millis in [0, 1, 20, 49] {
        let adoption = locks.adopt(passed_on(&held));
        let dropped = tokio::time::timeout(Duration::from_millis(millis), adoption).await;
        assert!(dropped.is_err(), "it has ended within {millis} ms");
        settle().await;
        for member in &members {
            let state = member.inspect(&name()).await.unwrap();
            assert_eq!(state.holders[0].owner, Some(held.owner));
        }
    }
    let guard = locks.adopt(passed_on(&held)).await.unwrap();
    assert_eq!(guard.fencing_token(), token);
    guard.verify().await.unwrap();
    guard.release().await.unwrap();
}

/// Renews a lock whose token is unknown, but does not adopt it: two members with different tokens
/// have answered, and the third one hangs. The wait for it is short.
#[tokio::test(start_paused = true)]
async fn a_lock_of_unknown_token_is_renewed_and_not_adopted() {
    let members: Vec<_> = (0..3).map(|_| Memory::new()).collect();
    let mut held = claim();
    granted(members[0].try_acquire(&held).await);
    let token = granted_ahead(&mut held, [&members[1], &members[2]]).await;
    let hangs = Arc::new(AtomicBool::new(true));
    let is_hung = Arc::clone(&hangs);
    let quorum =
        injected(&members, move |member, _| match member == 2 && is_hung.load(Ordering::SeqCst) {
            true => Injection::Hang,
            false => Injection::None,
        });
    let locks = Locker::new(quorum.build().await.unwrap());
    let detached = passed_on(&held);
    let error = locks.adopt(detached.clone()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let asked = Moment::now();
    locks.renew_detached(&detached).await.unwrap();
    let took = Moment::now().saturating_since(asked);
    assert!(took < Duration::from_millis(200), "it waited for the third one: {took:?}");
    hangs.store(false, Ordering::SeqCst);
    // The calls that hang are given up.
    sleep(Duration::from_secs(2)).await;
    assert_eq!(locks.adopt(detached).await.unwrap().fencing_token(), token);
}

/// Keeps a lock whose adopter knows the token, although a majority has another one later: its votes
/// were won back, one of them by the adopter.
#[tokio::test(start_paused = true)]
async fn an_adopted_lock_is_kept_when_its_votes_are_won_back() {
    let members = Members::of(3);
    for member in 0..3 {
        members.be_ahead(member, 1).await;
    }
    let forget = |member: usize| members.0[member].0.evict(&name());
    let locks = Locker::new(members.quorum().await);
    let guard = locks.lock("n").unwrap().ttl(TTL).detachable().acquire().await.unwrap();
    settle().await;
    forget(1);
    for _ in 0..2 {
        guard.verify().await.unwrap();
        settle().await;
    }
    let detached = guard.detach().await.unwrap();
    let token = detached.token;
    let locks = Locker::new(members.quorum().await);
    members.reach(&[1, 2]);
    let guard = locks.adopt(detached).await.unwrap();
    assert_eq!(guard.fencing_token(), token);
    forget(0);
    members.reach_all();
    for _ in 0..4 {
        settle().await;
        guard.verify().await.unwrap();
    }
    let mut tokens = Vec::new();
    for (member, _) in &members.0 {
        tokens.push(member.inspect(&name()).await.unwrap().holders[0].token);
    }
    assert!(tokens[0] == tokens[1] && tokens[0] > token, "{tokens:?} after {token:?}");
}

/// Confirms no vote by a renewal that began before an abandoned attempt landed. The attempt lands
/// when the majority is gone, and just before the renewal finds it. So the votes that the renewal
/// finds have not been held together with the majority.
#[tokio::test(start_paused = true)]
async fn a_vote_that_lands_during_a_renewal_is_not_confirmed_by_it() {
    let millis = Duration::from_millis;
    for late in 0..3 {
        let members: Vec<_> = (0..3).map(|_| Memory::new()).collect();
        let renewals = Arc::new(AtomicU64::new(0));
        let line = |(nth, member): (usize, &Memory)| {
            let renewals = Arc::clone(&renewals);
            FaultInjector::new(Arc::new(member.clone()), move |call| match call.verb {
                _ if nth != late => Injection::None,
                Verb::TryAcquire => Injection::LandLate(millis(700)),
                Verb::Renew if renewals.fetch_add(1, Ordering::SeqCst) == 0 => {
                    Injection::DelayRequest(millis(750))
                }
                _ => Injection::None,
            })
        };
        let builder = members.iter().enumerate().map(line);
        let builder = builder.fold(Quorum::builder(), QuorumBuilder::member).members_remember();
        let quorum = builder.build().await.unwrap();
        let mut held = claim();
        win(&quorum, &mut held).await;
        settle().await;
        assert!(matches!(renew(&quorum, &held).await, Ok(Renewal::Held(_))));
        // One member forgets it, and a rival has the lock meanwhile.
        let (forgets, rival) = ((late + 1) % 3, claim());
        members[forgets].evict(&name());
        for member in [forgets, late] {
            granted(members[member].try_acquire(&rival).await);
        }
        sleep(millis(300)).await;
        for member in [forgets, late] {
            members[member].release(&rival, ReleaseMode::now()).await.unwrap();
        }
        sleep(millis(600)).await;
        let state = members[late].inspect(&name()).await.unwrap();
        assert_eq!(state.holders[0].owner, Some(held.owner), "the attempt has not landed");
        assert_eq!(renewals.load(Ordering::SeqCst), 1);
        let answer = renew(&quorum, &held).await;
        assert!(matches!(answer, Ok(Renewal::NotHeld)), "{late} is late: {answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_vote_won_back_counts_once_it_is_confirmed() {
    let members = Members::of(3);
    let quorum = members.quorum().await;
    let mut held = claim();
    win(&quorum, &mut held).await;
    for lost in [0, 1, 2, 0] {
        settle().await;
        members.0[lost].0.evict(&name());
        for _ in 0..2 {
            assert!(matches!(renew(&quorum, &held).await, Ok(Renewal::Held(_))), "after {lost}");
            settle().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_vote_that_comes_late_because_the_process_was_stopped_counts_once_it_is_confirmed() {
    for (stopped, is_held) in [(Duration::ZERO, true), (Duration::from_secs(2), false)] {
        let members = Members::of(3);
        let quorum = members.quorum().await;
        let mut claim = claim();
        win(&quorum, &mut claim).await;
        let mut voters = Vec::new();
        for member in 0..3 {
            voters.extend(members.holder(member).await.map(|_| member));
        }
        assert_eq!(voters.len(), 2, "the third is asked later");
        tokio::time::advance(stopped).await;
        settle().await;
        for member in 0..3 {
            assert_eq!(members.holder(member).await, Some(claim.owner));
        }
        // One of the members that were asked at first forgets it: the late one cannot stand in for
        // it.
        members.0[voters[0]].0.evict(&name());
        let renewal = renew(&quorum, &claim).await.unwrap();
        assert_eq!(matches!(renewal, Renewal::Held(_)), is_held, "{stopped:?}: {renewal:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_a_majority_does_not_answer_is_unknown() {
    let members = Members::of(3);
    let quorum = members.quorum().await;
    let mut held = claim();
    win(&quorum, &mut held).await;
    settle().await;
    members.reach(&[2]);
    let fault = renew(&quorum, &held).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unavailable);
    members.reach_all();
    assert!(matches!(renew(&quorum, &held).await, Ok(Renewal::Held(_))));
}

#[tokio::test(start_paused = true)]
async fn a_release_is_that_of_a_majority() {
    let members = Members::of(3);
    let quorum = members.quorum().await;
    let [held, lost] = [Release::Released, Release::NotHeld];
    for (evicted, answer) in [(0..1, held), (0..2, lost), (1..3, lost)] {
        let mut held = claim();
        win(&quorum, &mut held).await;
        settle().await;
        members.0[evicted.clone()].iter().for_each(|(member, _)| member.evict(&name()));
        let released = quorum.release(&held, ReleaseMode::now()).await;
        assert_eq!(released.unwrap(), answer, "{evicted:?} evicted");
    }
    let mut held = claim();
    win(&quorum, &mut held).await;
    settle().await;
    members.reach(&[0]);
    let fault = quorum.release(&held, ReleaseMode::now()).await.unwrap_err();
    assert_eq!(fault.effect(), Effect::Unknown);
}

/// Leaves a rival's lock alone in a release that stands still half-way. The process finds the rest
/// lapsed, and the first member's answer has helped a rival to a majority by then.
#[tokio::test(start_paused = true)]
async fn a_release_during_which_the_lease_ends_does_not_say_that_it_was_not_held() {
    let members: Vec<_> = (0..3).map(|_| Memory::new()).collect();
    let quorum = injected(&members, |nth, verb| match verb {
        Verb::Release if nth > 0 => Injection::DelayRequest(Duration::from_millis(20)),
        _ => Injection::None,
    });
    let quorum = quorum.build().await.unwrap();
    let mut held = claim();
    win(&quorum, &mut held).await;
    settle().await;
    let mut releasing = pin!(quorum.release(&held, ReleaseMode::now()));
    let first = tokio::time::timeout(Duration::from_millis(5), releasing.as_mut()).await;
    assert!(first.is_err(), "two have not been told yet");
    tokio::time::advance(TTL * 2).await;
    let fault = releasing.await.unwrap_err();
    assert_eq!(fault.effect(), Effect::Unknown);
    assert_eq!(quorum.release(&held, ReleaseMode::now()).await.unwrap(), Release::NotHeld);
}

#[tokio::test(start_paused = true)]
async fn a_vote_won_back_is_not_released_as_held() {
    let members = Members::of(3);
    let quorum = members.quorum().await;
    let mut held = claim();
    win(&quorum, &mut held).await;
    settle().await;
    members.0[0].0.evict(&name());
    assert!(matches!(renew(&quorum, &held).await, Ok(Renewal::Held(_))));
    settle().await;
    assert_eq!(members.holder(0).await, Some(held.owner), "it is won back");
    members.0[1].0.evict(&name());
    let fault = quorum.release(&held, ReleaseMode::now()).await.unwrap_err();
    assert_eq!(fault.effect(), Effect::Unknown);
    assert_eq!(quorum.release(&held, ReleaseMode::now()).await.unwrap(), Release::NotHeld);
}

/// Does not confirm a vote that was lost, requested again, and granted after its caller gave up. A
/// rival had the lock in between.
#[tokio::test(start_paused = true)]
async fn a_late_vote_is_not_released_as_held() {
    let members: Vec<_> = (0..3).map(|_| Memory::new()).collect();
    let is_late = Arc::new(AtomicBool::new(false));
    let late = Arc::clone(&is_late);
    let quorum = injected(&members, move |nth, verb| match verb {
        Verb::TryAcquire if nth == 0 && late.load(Ordering::SeqCst) => {
            Injection::LandLate(Duration::from_millis(500))
        }
        _ => Injection::None,
    });
    let quorum = quorum.build().await.unwrap();
    let other = injected(&members, |_, _| Injection::None).build().await.unwrap();
    let mut held = claim();
    win(&quorum, &mut held).await;
    settle().await;
    members[0].evict(&name());
    is_late.store(true, Ordering::SeqCst);
    assert!(matches!(renew(&quorum, &held).await, Ok(Renewal::Held(_))));
    settle().await;
    members[1].evict(&name());
    let mut next = claim();
    win(&other, &mut next).await;
    assert_eq!(other.release(&next, ReleaseMode::now()).await.unwrap(), Release::Released);
    sleep(Duration::from_secs(1)).await;
    let holds = members[0].inspect(&name()).await.unwrap().holders;
    assert_eq!(holds.first().and_then(|holder| holder.owner), Some(held.owner), "it has landed");
    let fault = quorum.release(&held, ReleaseMode::now()).await.unwrap_err();
    assert_eq!(fault.effect(), Effect::Unknown);
    assert_eq!(quorum.release(&held, ReleaseMode::now()).await.unwrap(), Release::NotHeld);
}

/// Undoes attempts without an answer only after they have landed. Core has to release the claim,
/// and then members refuse them.
#[tokio::test(start_paused = true)]
async fn an_attempt_that_may_still_land_is_unknown_and_excludes_no_client() {
    for down in [None, Some(0), Some(1), Some(2)] {
        let members: Vec<_> = (0..3).map(|_| Memory::new()).collect();
        let is_first = Arc::new(AtomicBool::new(true));
        let first = Arc::clone(&is_first);
        let quorum = injected(&members, move |nth, verb| match verb {
            _ if Some(nth) == down => Injection::Refuse(FaultKind::Unavailable),
            Verb::TryAcquire if first.load(Ordering::SeqCst) => {
                Injection::LandLate(Duration::from_secs(1))
            }
            _ => Injection::None,
        });
        let locks = Locker::new(quorum.build().await.unwrap());
        let lock = || locks.lock("n").unwrap().ttl(TTL);
        let error = lock().try_acquire().await.unwrap_err();
        assert_eq!(error.effect(), Effect::Unknown, "{down:?} is down");
        is_first.store(false, Ordering::SeqCst);
        sleep(Duration::from_secs(2)).await;
        for (nth, member) in members.iter().enumerate() {
            let holders = member.inspect(&name()).await.unwrap().holders;
            assert!(holders.is_empty(), "{nth} of which {down:?} is down: {holders:?}");
        }
        let next = lock().try_acquire().await.unwrap();
        next.expect("nobody has it").release().await.unwrap();
    }
}

/// Breaks a lock while its holder releases it: at one member the break comes first, at the next the
/// release.
#[tokio::test(start_paused = true)]
async fn a_break_that_ended_a_minority_has_an_unknown_outcome() {
    let members = Members::of(3);
    let quorum = members.quorum().await;
    let mut held = claim();
    win(&quorum, &mut held).await;
    settle().await;
    for member in [1, 2] {
        let (member, _) = &members.0[member];
        assert_eq!(member.release(&held, ReleaseMode::now()).await.unwrap(), Release::Released);
    }
    let fault = quorum.break_lock(&name(), &held.owner).await.unwrap_err();
    assert_eq!(fault.effect(), Effect::Unknown);
    assert_eq!(members.holder(0).await, None, "it is broken there");
    assert!(!quorum.break_lock(&name(), &held.owner).await.unwrap());
}

/// Changes nothing at a member that says that it was not asked. A member without an answer may have
/// been changed.
#[tokio::test(start_paused = true)]
async fn a_break_without_an_answer_of_a_member_has_an_unknown_outcome() {
    for is_told in [true, false] {
        let members = Members::of(3);
        let builder = Quorum::builder()
            .member(Layered::new(Arc::new(members.0[0].0.clone()), Unbroken(is_told)));
        let theirs = members.0[1..].iter().map(|(memory, _)| memory.clone());
        let builder = theirs.fold(builder, QuorumBuilder::member).members_remember();
        let quorum = builder.build().await.unwrap();
        let mut held = claim();
        win(&quorum, &mut held).await;
        settle().await;
        for (member, _) in &members.0[1..] {
            assert_eq!(member.release(&held, ReleaseMode::now()).await.unwrap(), Release::Released);
        }
        match quorum.break_lock(&name(), &held.owner).await {
            Ok(ended) => assert!(is_told && !ended),
            Err(fault) => assert!(!is_told && fault.effect() == Effect::Unknown, "{fault:?}"),
        }
    }
}

/// A member that is absent for breaks, and whether it says so.
#[derive(Debug)]
struct Unbroken(bool);

#[async_trait]
impl Layer for Unbroken {
    async fn break_lock(&self, _: &dyn Backend, _: &LockName, _: &OwnerId) -> Result<bool, Fault> {
        match self.0 {
            true => Err(Fault::not_applied(FaultKind::Unavailable, "not there")),
            false => std::future::pending().await,
        }
    }
}

/// Keeps no client out with one member that has missed a release, but does so while another one is
/// away.
#[tokio::test(start_paused = true)]
async fn a_member_that_missed_a_release_excludes_clients_while_another_is_away() {
    for missing in [None, Some(0), Some(1)] {
        let members = Members::of(3);
        let theirs = members.0.iter().map(|(memory, _)| (memory.clone(), Arc::default()));
        let theirs = Members(theirs.collect());
        let (quorum, other) = (members.quorum().await, theirs.quorum().await);
        let mut held = claim();
        win(&quorum, &mut held).await;
        settle().await;
        members.reach(&[0, 1]);
        assert_eq!(quorum.release(&held, ReleaseMode::now()).await.unwrap(), Release::Released);
        let there: Vec<_> = (0..3).filter(|&member| Some(member) != missing).collect();
        theirs.reach(&there);
        let mut next = claim();
        if missing.is_some() {
            match other.try_acquire(&next).await {
                Ok(Attempt::Contended { expires_in: Some(expires_in) }) => {
                    assert!(expires_in <= TTL);
                }
                unexpected => panic!("without {missing:?}: {unexpected:?}"),
            }
            members.reach_all();
            sleep(TTL / 2).await;
        }
        win(&other, &mut next).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_reaches_a_member_that_was_away() {
    let members = Members::of(3);
    let quorum = members.quorum().await;
    let mut held = claim();
    win(&quorum, &mut held).await;
    settle().await;
    members.reach(&[0, 1]);
    assert_eq!(quorum.release(&held, ReleaseMode::now()).await.unwrap(), Release::Released);
    sleep(TTL / 4).await;
    assert_eq!(members.holder(2).await, Some(held.owner));
    members.reach_all();
    sleep(TTL / 2).await;
    assert_eq!(members.holder(2).await, None, "only its lease ends it");
}

/// Makes members that answer until they are told to do otherwise with verbs of this kind.
fn injected(
    members: &[Memory],
    how: impl Fn(usize, Verb) -> Injection + Clone + Send + Sync + 'static,
) -> QuorumBuilder {
    let line = |(nth, member): (usize, &Memory)| {
        let how = how.clone();
        FaultInjector::new(Arc::new(member.clone()), move |call| how(nth, call.verb))
    };
    let builder = members.iter().enumerate().map(line);
    builder.fold(Quorum::builder(), QuorumBuilder::member).members_remember()
}

/// Bounds the repeated releases at one member. One hangs while a thousand locks are released, and
/// then another one loses a release, which is repeated at once.
#[tokio::test(start_paused = true)]
async fn a_member_that_hangs_keeps_no_release_from_another_one() {
    const MANY: usize = 3000;
    let members: Vec<_> = (0..5).map(|_| Memory::new()).collect();
    let (hangs, loses) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (hung, lost) = (Arc::clone(&hangs), Arc::clone(&loses));
    let how = move |nth, verb| match (nth, verb) {
        (0, Verb::Release) if hung.load(Ordering::SeqCst) => Injection::Hang,
        (1, Verb::Release) if lost.swap(false, Ordering::SeqCst) => {
            Injection::Refuse(FaultKind::Unavailable)
        }
        _ => Injection::None,
    };
    let quorum = injected(&members, how).build().await.unwrap();
    let mut held = Vec::new();
    for nth in 0..=MANY {
        let name = LockName::new(nth.to_string()).unwrap();
        let mut claim = Claim::new(name, OwnerId::mint(), TTL * 6);
        win(&quorum, &mut claim).await;
        held.push(claim);
    }
    settle().await;
    hangs.store(true, Ordering::SeqCst);
    let last = held.pop().expect("one more than many");
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for claim in held {
        assert_eq!(quorum.release(&claim, ReleaseMode::now()).await.unwrap(), Release::Released);
    }
    // The calls have ended by now, and are repeated.
    sleep(Duration::from_secs(3)).await;
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks() - before;
    assert!(tasks <= 1100, "{tasks} tasks for {MANY} releases");
    loses.store(true, Ordering::SeqCst);
    assert_eq!(quorum.release(&last, ReleaseMode::now()).await.unwrap(), Release::Released);
    assert!(!members[1].inspect(&last.name).await.unwrap().holders.is_empty(), "it was not lost");
    sleep(Duration::from_millis(500)).await;
    assert!(members[1].inspect(&last.name).await.unwrap().holders.is_empty(), "not repeated");
}

/// Asks one of two spare members no later although the other one hangs, and counts its vote.
#[tokio::test(start_paused = true)]
async fn votes_that_were_not_needed_are_asked_for_together() {
    for hung in 0..5 {
        let members: Vec<_> = (0..5).map(|_| Memory::new()).collect();
        let hangs = Arc::new(AtomicBool::new(false));
        let hanging = Arc::clone(&hangs);
        let how = move |nth, _| match nth == hung && hanging.load(Ordering::SeqCst) {
            true => Injection::Hang,
            false => Injection::None,
        };
        let quorum = injected(&members, how).build().await.unwrap();
        let mut held = claim();
        win(&quorum, &mut held).await;
        let voters = voters(&members).await;
        if voters.contains(&hung) {
            continue;
        }
        hangs.store(true, Ordering::SeqCst);
        settle().await;
        members[voters[0]].evict(&name());
        let answer = renew(&quorum, &held).await;
        assert!(matches!(answer, Ok(Renewal::Held(_))), "{hung} hangs: {answer:?}");
    }
}

async fn voters(members: &[Memory]) -> Vec<usize> {
    let mut voters = Vec::new();
    for (nth, member) in members.iter().enumerate() {
        if !member.inspect(&name()).await.unwrap().holders.is_empty() {
            voters.push(nth);
        }
    }
    voters
}

/// Asks no member without need, since each request without an answer would have to be undone.
#[tokio::test(start_paused = true)]
async fn a_lagging_member_is_not_asked_for_a_needless_vote() {
    for hung in 0..3 {
        let members: Vec<_> = (0..3).map(|_| Memory::new()).collect();
        let asked = Arc::new(AtomicU64::new(0));
        let (hangs, counted) = (Arc::new(AtomicBool::new(false)), Arc::clone(&asked));
        let hanging = Arc::clone(&hangs);
        let how = move |nth, verb| match nth == hung && hanging.load(Ordering::SeqCst) {
            true => {
                counted.fetch_add(u64::from(verb == Verb::TryAcquire), Ordering::SeqCst);
                Injection::Hang
            }
            false => Injection::None,
        };
        let quorum = injected(&members, how).build().await.unwrap();
        win(&quorum, &mut claim()).await;
        settle().await;
        hangs.store(true, Ordering::SeqCst);
        for nth in 0..100 {
            let name = LockName::new(format!("{nth}")).unwrap();
            let mut claim = Claim::new(name, OwnerId::mint(), TTL);
            win(&quorum, &mut claim).await;
            sleep(Duration::from_millis(20)).await;
            quorum.release(&claim, ReleaseMode::now()).await.unwrap();
        }
        let asked = asked.load(Ordering::SeqCst);
        assert!(asked < 10, "{hung} hangs, and was asked {asked} times");
    }
}

/// Grants rising tokens for every pair of majorities.
#[tokio::test(start_paused = true)]
async fn tokens_grow_across_majorities() {
    let members = Members::of(5);
    let quorum = members.quorum().await;
    let majorities = [[0, 1, 2], [2, 3, 4], [0, 3, 4], [0, 1, 4], [1, 2, 3], [0, 1, 2]];
    // Members whose tokens are far from each other.
    for member in 0..5 {
        members.be_ahead(member, member as u64 * 7 % 5).await;
    }
    let mut last = None;
    for reachable in majorities {
        members.reach(&reachable);
        let mut held = claim();
        let token = win(&quorum, &mut held).await;
        assert!(Some(token) > last, "{token} after {last:?}, by {reachable:?}");
        for member in reachable {
            let state = members.0[member].0.inspect(&name()).await.unwrap();
            assert!(
                state.holders[0].token >= Some(token),
                "member {member} has not stored {token}"
            );
        }
        quorum.release(&held, ReleaseMode::now()).await.unwrap();
        last = Some(token);
        settle().await;
    }
}

/// Releases a grant during the call that raises a member's token. Before the answer of that member,
/// the others are a majority by themselves.
#[tokio::test(start_paused = true)]
async fn an_abandoned_call_leaves_no_vote() {
    for ahead in [[1, 2, 2], [2, 1, 2], [2, 2, 1], [1, 2, 3]] {
        let members = Members::of(3);
        for (member, hours) in ahead.into_iter().enumerate() {
            members.be_ahead(member, hours).await;
        }
        let quorum = members.quorum().await;
        let mut held = claim();
        win(&quorum, &mut held).await;
        assert_eq!(quorum.release(&held, ReleaseMode::now()).await.unwrap(), Release::Released);
        settle().await;
        for member in 0..3 {
            assert_eq!(members.holder(member).await, None, "member {member}, numbers {ahead:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn one_round_is_enough_where_clocks_agree() {
    let attempts = Arc::new(AtomicU64::new(0));
    let counted = || {
        let attempts = Arc::clone(&attempts);
        FaultInjector::new(Arc::new(Memory::new()), move |call| {
            if call.verb == Verb::TryAcquire {
                attempts.fetch_add(1, Ordering::SeqCst);
            }
            Injection::None
        })
    };
    let builder = (0..3).fold(Quorum::builder(), |builder, _| builder.member(counted()));
    let quorum = builder.members_remember().build().await.unwrap();
    for round in 1..=20 {
        let mut held = claim();
        win(&quorum, &mut held).await;
        settle().await;
        quorum.release(&held, ReleaseMode::now()).await.unwrap();
        assert_eq!(attempts.load(Ordering::SeqCst), round * 3);
    }
}

/// Waits no longer for a hung member because it waited before, for a client that locks seldom.
#[tokio::test(start_paused = true)]
async fn a_member_that_hangs_costs_no_more_the_more_often_it_is_met() {
    for hung in 0..3 {
        let members: Vec<_> = (0..3).map(|_| Memory::new()).collect();
        let hangs = Arc::new(AtomicBool::new(false));
        let hanging = Arc::clone(&hangs);
        let how = move |nth, _| match nth == hung && hanging.load(Ordering::SeqCst) {
            true => Injection::Hang,
            false => Injection::DelayReply(Duration::from_millis(5)),
        };
        let quorum = injected(&members, how).build().await.unwrap();
        for nth in 0..100 {
            let began = Moment::now();
            let mut claim = claim();
            win(&quorum, &mut claim).await;
            let took = Moment::now().saturating_since(began);
            assert!(took < Duration::from_millis(50), "the {nth}th took {took:?}, {hung} hangs");
            quorum.release(&claim, ReleaseMode::now()).await.unwrap();
            hangs.store(nth >= 20, Ordering::SeqCst);
            sleep(Duration::from_secs(10)).await;
        }
    }
}

/// Gets used to slower members soon, and then asks no more of them than it needs.
#[tokio::test(start_paused = true)]
async fn a_way_that_has_become_longer_is_got_used_to() {
    let members: Vec<_> = (0..5).map(|_| Memory::new()).collect();
    let (millis, asked) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(0)));
    let (far, counted) = (Arc::clone(&millis), Arc::clone(&asked));
    let how = move |_, verb| {
        counted.fetch_add(u64::from(verb == Verb::TryAcquire), Ordering::SeqCst);
        Injection::DelayReply(Duration::from_millis(far.load(Ordering::SeqCst)))
    };
    let quorum = injected(&members, how).build().await.unwrap();
    let pair = async || {
        let mut claim = claim();
        win(&quorum, &mut claim).await;
        quorum.release(&claim, ReleaseMode::now()).await.unwrap();
        settle().await;
    };
    pair().await;
    millis.store(100, Ordering::SeqCst);
    for _ in 0..20 {
        pair().await;
    }
    sleep(Duration::from_secs(10)).await;
    let before = asked.load(Ordering::SeqCst);
    pair().await;
    assert_eq!(asked.load(Ordering::SeqCst) - before, 3);
}

/// Returns the members in the order in which they are asked for the lock: the first two are asked
/// together.
async fn in_order() -> [usize; 3] {
    let members = Members::of(3);
    win(&members.quorum().await, &mut claim()).await;
    let first = match (members.holder(0).await, members.holder(1).await, members.holder(2).await) {
        (Some(_), Some(_), None) => 0,
        (None, Some(_), Some(_)) => 1,
        _ => 2,
    };
    [first, (first + 1) % 3, (first + 2) % 3]
}

/// Loses the second member's vote during the request that raises its token, which takes this long.
/// A majority has voted before. A rival then wins at that member and at the third one. Returns the
/// task that acquires, and the rival's claim, whose min_token is its token.
async fn loses_a_vote_during_a_raise(
    members: &Members,
    raise_takes: Duration,
) -> (JoinHandle<Grant>, Claim) {
    let [first, second, third] = in_order().await;
    members.be_ahead(first, 2).await;
    let servers: Vec<_> = members.0.iter().map(|(member, _)| member.clone()).collect();
    let attempts = Arc::new(AtomicU64::new(0));
    let how = move |nth, verb| match (nth == second, verb) {
        (true, Verb::TryAcquire) if attempts.fetch_add(1, Ordering::SeqCst) == 1 => {
            Injection::DelayRequest(raise_takes)
        }
        _ => Injection::None,
    };
    let quorum = injected(&servers, how).build().await.unwrap();
    let winning = tokio::spawn(async move { granted(quorum.try_acquire(&claim()).await) });
    sleep(Duration::from_millis(2)).await;
    members.0[second].0.evict(&name());
    let mut rival = claim();
    let number = u64::try_from(lock_core::clock::wall().as_micros()).unwrap();
    rival.min_token = FencingToken::from_backend(number + 5 * 3600 * 1_000_000);
    let rivals = granted(members.0[second].0.try_acquire(&rival).await).token;
    assert_eq!(granted(members.0[third].0.try_acquire(&rival).await).token, rivals);
    assert!(!winning.is_finished(), "it was won without the raise");
    rival.min_token = rivals;
    (winning, rival)
}

/// Wins the member again, with a token that is higher by then, when the claim tries again.
#[tokio::test(start_paused = true)]
async fn the_token_is_that_of_the_majority_that_wins() {
    let members = Members::of(3);
    let (winning, rival) = loses_a_vote_during_a_raise(&members, Duration::from_millis(5)).await;
    let [_, second, _] = in_order().await;
    while winning.is_finished() || members.holder(second).await == Some(rival.owner) {
        assert!(!winning.is_finished(), "it was won without them");
        sleep(Duration::from_millis(4)).await;
        members.0[second].0.release(&rival, ReleaseMode::now()).await.unwrap();
    }
    let token = winning.await.unwrap().token;
    assert!(token > rival.min_token, "{token:?} after {:?}", rival.min_token);
}

/// Gets a new vote with a higher token if the member is free again when the raise arrives.
#[tokio::test(start_paused = true)]
async fn a_vote_that_is_cast_anew_during_a_raise_gives_the_token() {
    the_highest_vote_gives_the_token(Duration::from_millis(5)).await;
}

/// Asks the third member when the raise is late, whose token is higher by then.
#[tokio::test(start_paused = true)]
async fn a_vote_that_is_cast_instead_of_a_raise_gives_the_token() {
    the_highest_vote_gives_the_token(Duration::from_millis(500)).await;
}

async fn the_highest_vote_gives_the_token(raise_takes: Duration) {
    let members = Members::of(3);
    let (winning, rival) = loses_a_vote_during_a_raise(&members, raise_takes).await;
    for (member, _) in &members.0 {
        member.release(&rival, ReleaseMode::now()).await.unwrap();
    }
    let grant = winning.await.unwrap();
    assert!(grant.token > rival.min_token, "{:?} after {:?}", grant.token, rival.min_token);
    let mut storing = 0;
    for (member, _) in &members.0 {
        let state = member.inspect(&name()).await.unwrap();
        storing += state.holders.iter().filter(|holder| holder.token >= grant.token).count();
    }
    assert!(storing >= 2, "{storing} members have stored the token");
}

/// Grants forty concurrent claims on five members, one after another, although votes are split.
#[tokio::test(start_paused = true)]
async fn split_votes_are_broken() {
    let members = Members::of(5);
    let mut racing = tokio::task::JoinSet::new();
    for nth in 0..40_u64 {
        // The requests of each claim arrive in an order of their own.
        let far = members.0.iter().enumerate().map(|(member, (memory, _))| {
            let far = Duration::from_millis((nth * 7 + member as u64 * 11) % 5);
            FaultInjector::new(Arc::new(memory.clone()), move |_| Injection::DelayRequest(far))
        });
        let builder = far.fold(Quorum::builder(), QuorumBuilder::member).members_remember();
        let locks = Locker::new(builder.build().await.unwrap());
        racing.spawn(async move {
            let guard = locks.lock("n").unwrap().acquire().await.unwrap();
            guard.release().await.unwrap();
        });
    }
    let began = Moment::now();
    while let Some(served) = racing.join_next().await {
        served.expect("nobody fails");
    }
    let took = Moment::now().saturating_since(began);
    assert!(took < Duration::from_secs(20), "{took:?}");
}

/// Grants a free lock to one of several concurrent tries.
#[tokio::test(start_paused = true)]
async fn of_several_tries_one_wins() {
    for size in [3, 5] {
        let members = Members::of(size);
        for round in 0..20 {
            let mut racing = tokio::task::JoinSet::new();
            for nth in 0..size as u64 {
                let far = members.0.iter().enumerate().map(|(member, (memory, _))| {
                    // Each client is next to another member.
                    let far = Duration::from_millis((nth + member as u64 + round) % size as u64);
                    FaultInjector::new(Arc::new(memory.clone()), move |_| {
                        Injection::DelayRequest(far)
                    })
                });
                let builder = far.fold(Quorum::builder(), QuorumBuilder::member).members_remember();
                let quorum = builder.build().await.unwrap();
                racing.spawn(async move {
                    let answer = quorum.try_acquire(&claim()).await;
                    matches!(answer, Ok(Attempt::Acquired(_)))
                });
            }
            let winners = racing.join_all().await.into_iter().filter(|won| *won).count();
            assert_eq!(winners, 1, "of {size} in round {round}");
            members.0.iter().for_each(|(member, _)| member.evict(&name()));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn inspect_shows_the_majority_and_each_member() {
    let members = Members::of(3);
    let quorum = members.quorum().await;
    let mut held = claim();
    let token = win(&quorum, &mut held).await;
    settle().await;
    members.0[1].0.evict(&name());
    let state = quorum.inspect(&name()).await.unwrap();
    assert_eq!(state.holders.len(), 1);
    assert_eq!((state.holders[0].owner, state.holders[0].token), (Some(held.owner), Some(token)));
    let seen: Vec<_> = state.members.iter().map(|m| m.holders.as_ref().map(Vec::len)).collect();
    assert_eq!(seen, [Ok(1), Ok(0), Ok(1)]);
    // A minority is no holder.
    members.0[2].0.evict(&name());
    let state = quorum.inspect(&name()).await.unwrap();
    assert!(state.holders.is_empty());
    assert_eq!(state.members[0].holders.as_ref().map(Vec::len), Ok(1));
    assert_eq!(state.members[0].name, "member 1 (memory)");
}

#[tokio::test(start_paused = true)]
async fn a_member_with_a_higher_token_does_not_hide_the_grants() {
    for ahead in 0..3 {
        let members = Members::of(3);
        members.be_ahead(ahead, 1).await;
        let quorum = members.quorum().await;
        let mut held = claim();
        let token = win(&quorum, &mut held).await;
        settle().await;
        let state = quorum.inspect(&name()).await.unwrap();
        assert_eq!(state.holders[0].token, Some(token), "member {ahead} is ahead");
    }
}
