//! Members whose addresses move to other servers during use: DNS, a virtual IP, an address that is
//! used again. A vote belongs to a server, however many addresses lead to it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{
    Attempt, Backend, Claim, Fault, FaultKind, Identity, Listed, LockState, Release, ReleaseMode,
    Renewal, Wake,
};
use lock_core::clock::sleep;
use lock_core::dial::{Dialer, Epoch};
use lock_core::layer::{Layer, Layered};
use lock_core::{Capabilities, Effect, Error, ErrorKind, LockName, Locker, Memory, OwnerId};
use lock_quorum::{Quorum, QuorumBuilder};

const TTL: Duration = Duration::from_secs(10);

/// When an address moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    /// The next connection is there before the verb.
    Before,
    /// The connection has turned out to be broken when the verb uses it: the next one carries the
    /// verb.
    AtTheBeginning,
    /// The old server answers the verb, and the next connection is there before the answer.
    AtTheEnd,
    /// The connection breaks before the verb, and the next one carries it and breaks as well: the
    /// address leads back to the old server before the answer.
    ThereAndBack,
    /// The old server identifies itself, and the next connection is there before that answer
    /// arrives.
    WhileItTells,
    /// The old server answers the verb, and there is no next connection.
    Never,
}

const ALWAYS: [When; 3] = [When::Before, When::AtTheBeginning, When::AtTheEnd];

/// When a verb may have been answered by either server.
const MEANWHILE: [When; 2] = [When::AtTheBeginning, When::AtTheEnd];

/// How long the answer of a slow address takes.
const SLOW: Duration = Duration::from_millis(5);

/// An address, and the server in memory to which it leads.
#[derive(Clone, Debug)]
struct Address(Arc<Way>);

#[derive(Debug)]
struct Way {
    dialer: Dialer<(u64, Memory)>,
    connections: AtomicU64,
    /// The server to which it moves with the next verb.
    moves: Mutex<Option<(When, Memory)>>,
    is_cut: AtomicBool,
    is_slow: AtomicBool,
    is_nameless: AtomicBool,
}

impl Address {
    fn of(server: &Memory) -> Self {
        let address = Self(Arc::new(Way {
            dialer: Dialer::default(),
            connections: AtomicU64::default(),
            moves: Mutex::default(),
            is_cut: AtomicBool::default(),
            is_slow: AtomicBool::default(),
            is_nameless: AtomicBool::default(),
        }));
        address.connect(server.clone());
        address
    }

    fn connect(&self, server: Memory) {
        let id = self.0.connections.fetch_add(1, Ordering::SeqCst);
        self.0.dialer.put((id, server));
    }

    fn moves(&self, when: When, server: &Memory) {
        match when {
            When::Before => self.connect(server.clone()),
            _ => *self.0.moves.lock().unwrap() = Some((when, server.clone())),
        }
    }

    fn is_cut(&self, is_cut: bool) {
        self.0.is_cut.store(is_cut, Ordering::SeqCst);
    }

    fn is_slow(&self, is_slow: bool) {
        self.0.is_slow.store(is_slow, Ordering::SeqCst);
    }

    /// Makes a new connection, on which the server identifies itself, or cannot.
    fn is_nameless(&self, is_nameless: bool) {
        self.0.is_nameless.store(is_nameless, Ordering::SeqCst);
        self.connect(self.connection().expect("it is not cut off").1);
    }

    /// Delays the answer to a verb that a server has carried out.
    async fn answer(&self) {
        if self.0.is_slow.load(Ordering::SeqCst) {
            sleep(SLOW).await;
        }
    }

    fn connection(&self) -> Result<(u64, Memory), Fault> {
        match self.0.is_cut.load(Ordering::SeqCst) {
            true => Err(Fault::not_applied(FaultKind::Unavailable, "cut off")),
            false => Ok(self.0.dialer.current().expect("it is connected from the beginning")),
        }
    }

    /// Returns the server that carries a verb out, and the move that follows.
    fn carrier(&self) -> Result<(Memory, Then<'_>), Fault> {
        let mut moves = self.0.moves.lock().unwrap().take();
        match moves.take() {
            Some((When::AtTheBeginning, server)) => self.connect(server),
            Some((When::ThereAndBack, server)) => {
                moves = Some((When::AtTheEnd, self.connection()?.1));
                self.connect(server);
            }
            later => moves = later,
        }
        let (_, server) = self.connection()?;
        Ok((server, Then(self, moves)))
    }
}

/// Moves the address when it is dropped.
struct Then<'a>(&'a Address, Option<(When, Memory)>);

impl Drop for Then<'_> {
    fn drop(&mut self) {
        if let Some((when, server)) = self.1.take() {
            self.0.is_cut(when == When::Never);
            self.0.connect(server);
        }
    }
}

#[async_trait]
impl Backend for Address {
    fn capabilities(&self) -> Capabilities {
        Memory::new().capabilities()
    }

    async fn identity(&self) -> Result<Option<Identity>, Fault> {
        let (id, server) = self.connection()?;
        let told = self.0.moves.lock().unwrap().take_if(|(when, _)| *when == When::WhileItTells);
        told.into_iter().for_each(|(_, server)| self.connect(server));
        if self.0.is_nameless.load(Ordering::SeqCst) {
            return Ok(None);
        }
        let epoch: Epoch = self.0.dialer.epoch_of(|(current, _)| *current == id);
        Ok(server.identity().await?.map(|identity| identity.during(epoch)))
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        let (server, _then) = self.carrier()?;
        let answer = server.try_acquire(claim).await;
        self.answer().await;
        answer
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake, Fault> {
        self.connection()?.1.wait(claim).await
    }

    async fn wait_lost(&self, claim: &Claim) -> Result<(), Fault> {
        self.connection()?.1.wait_lost(claim).await
    }
    async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        match self.carrier() {
            Ok((server, _then)) => {
                let answers = server.renew(claims).await;
                self.answer().await;
                answers
            }
            Err(fault) => claims.iter().map(|_| Err(fault.repeated())).collect(),
        }
    }

    async fn release(&self, claim: &Claim, how: ReleaseMode) -> Result<Release, Fault> {
        let (server, _then) = self.carrier()?;
        let answer = server.release(claim, how).await;
        self.answer().await;
        answer
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, Fault> {
        let (server, _then) = self.carrier()?;
        let answer = server.inspect(name).await;
        self.answer().await;
        answer
    }

    async fn list(&self, p: &str, a: Option<&LockName>, l: usize) -> Result<Vec<Listed>, Fault> {
        self.connection()?.1.list(p, a, l).await
    }

    async fn break_lock(&self, name: &LockName, expected: &OwnerId) -> Result<bool, Fault> {
        let (server, _then) = self.carrier()?;
        server.break_lock(name, expected).await
    }
}

/// Three servers, a client with an address for each of them, and a client whose addresses stay.
struct Moving {
    servers: [Memory; 3],
    addresses: [Address; 3],
    ours: Quorum,
    theirs: Quorum,
}

impl Moving {
    async fn start() -> Self {
        let servers: [Memory; 3] = std::array::from_fn(|_| Memory::new());
        let addresses = servers.each_ref().map(Address::of);
        let built = async |builder: QuorumBuilder| builder.members_remember().build().await;
        let ours = addresses.iter().cloned().fold(Quorum::builder(), QuorumBuilder::member);
        let theirs = servers.iter().cloned().fold(Quorum::builder(), QuorumBuilder::member);
        let (ours, theirs) = (built(ours).await.unwrap(), built(theirs).await.unwrap());
        Self { servers, addresses, ours, theirs }
    }

    /// Wins on the first two servers only, while the third one is unreachable.
    async fn hold_on_two(&self) -> Claim {
        self.addresses[2].is_cut(true);
        let mut claim = claim();
        match self.ours.try_acquire(&claim).await {
            Ok(Attempt::Acquired(grant)) => claim.ticket = grant.ticket,
            other => panic!("not granted: {other:?}"),
        }
        claim
    }

    /// Wins on the first two servers, and then on the third one.
    async fn hold_on_all(&self) -> Claim {
        let held = self.hold_on_two().await;
        self.addresses[2].is_cut(false);
        let answer = self.ours.try_acquire(&held).await;
        assert!(is_granted(&answer), "{answer:?}");
        sleep(TTL / 100).await;
        for server in &self.servers {
            let state = server.inspect(&name()).await.unwrap();
            assert!(
                state.holders.iter().any(|holder| holder.owner == Some(held.owner)),
                "{state:?}"
            );
        }
        held
    }

    async fn renew(&self, claim: &Claim) -> Result<Renewal, Fault> {
        self.ours.renew(&[claim]).await.pop().expect("one answer for one claim")
    }

    /// Lets the address of the second member lead to the first server, as the quorum knows, and
    /// moves it back.
    async fn second_leads_back(&self, when: When) {
        self.second_leads_to_first(When::Before);
        let state = self.ours.inspect(&name()).await;
        state.expect_err("one server is left, and the third is cut off");
        self.addresses[1].moves(when, &self.servers[1]);
    }

    /// Moves the address of the second member to the first server.
    fn second_leads_to_first(&self, when: When) {
        self.addresses[1].moves(when, &self.servers[0]);
    }
}

fn name() -> LockName {
    LockName::new("n").expect("a good name")
}

fn claim() -> Claim {
    Claim::new(name(), OwnerId::mint(), TTL)
}

fn is_granted(answer: &Result<Attempt, Fault>) -> bool {
    matches!(answer, Ok(Attempt::Acquired(_)))
}

#[tokio::test(start_paused = true)]
async fn an_attempt_counts_a_server_once() {
    for when in ALWAYS {
        let moving = Moving::start().await;
        moving.addresses[2].is_cut(true);
        moving.second_leads_to_first(when);
        let answer = moving.ours.try_acquire(&claim()).await;
        assert!(!is_granted(&answer), "{when:?}: one server has voted twice");
        assert!(is_granted(&moving.theirs.try_acquire(&claim()).await), "{when:?}: it is free");
    }
}

/// Counts no vote by an address that may have led to the first server during the request.
#[tokio::test(start_paused = true)]
async fn an_attempt_counts_a_server_once_while_an_address_moves_away() {
    for when in MEANWHILE {
        let moving = Moving::start().await;
        moving.addresses[2].is_cut(true);
        moving.second_leads_back(when).await;
        let answer = moving.ours.try_acquire(&claim()).await;
        let theirs = moving.theirs.try_acquire(&claim()).await;
        assert!(!is_granted(&answer), "{when:?}: one server has voted twice; theirs: {theirs:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_counts_a_server_once_while_an_address_moves_away() {
    for when in MEANWHILE {
        let moving = Moving::start().await;
        let held = moving.hold_on_two().await;
        moving.second_leads_back(when).await;
        let answer = moving.renew(&held).await;
        assert!(answer.is_err(), "{when:?}: one server has renewed twice: {answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_counts_a_server_once_while_an_address_moves_away() {
    for when in MEANWHILE {
        let moving = Moving::start().await;
        let held = moving.hold_on_all().await;
        moving.servers[0].evict(&name());
        moving.addresses[2].is_cut(true);
        moving.second_leads_back(when).await;
        let answer = moving.ours.release(&held, ReleaseMode::now()).await;
        assert!(answer.is_err(), "{when:?}: one server has said it twice: {answer:?}");
    }
}

/// Counts no vote that a third server may have given, though both known servers are others.
#[tokio::test(start_paused = true)]
async fn a_connection_that_was_replaced_twice_is_no_proof() {
    let when = When::ThereAndBack;
    let moving = Moving::start().await;
    moving.addresses[2].is_cut(true);
    moving.second_leads_to_first(when);
    let answer = moving.ours.try_acquire(&claim()).await;
    assert!(!is_granted(&answer), "one server has voted twice: {answer:?}");

    let moving = Moving::start().await;
    let held = moving.hold_on_two().await;
    moving.second_leads_to_first(when);
    let answer = moving.renew(&held).await;
    assert!(answer.is_err(), "one server has renewed twice: {answer:?}");

    let moving = Moving::start().await;
    let held = moving.hold_on_all().await;
    moving.servers[0].evict(&name());
    moving.addresses[2].is_cut(true);
    moving.second_leads_to_first(when);
    let answer = moving.ours.release(&held, ReleaseMode::now()).await;
    assert!(answer.is_err(), "one server has said it twice: {answer:?}");
}

/// Trusts no identity from a connection that is replaced by then.
#[tokio::test(start_paused = true)]
async fn a_late_identity_does_not_count() {
    let moving = Moving::start().await;
    moving.addresses[2].is_cut(true);
    moving.addresses[1].moves(When::Before, &moving.servers[1]);
    moving.second_leads_to_first(When::WhileItTells);
    let answer = moving.ours.try_acquire(&claim()).await;
    assert!(!is_granted(&answer), "one server has voted twice");
}

/// Gives a vote back, since it may be there.
#[tokio::test(start_paused = true)]
async fn an_answer_of_unknown_origin_is_in_doubt() {
    let moving = Moving::start().await;
    moving.addresses[2].is_cut(true);
    moving.addresses[1].moves(When::Never, &moving.servers[1]);
    let ours = claim();
    let fault = moving.ours.try_acquire(&ours).await.expect_err("two are away");
    assert_eq!(fault.effect(), Effect::Unknown, "{fault:?}");
    moving.addresses[1].is_cut(false);
    // The third one may have a vote as well.
    drop(moving.ours.release(&ours, ReleaseMode::after_unknown_outcome()).await);
    assert!(moving.servers[1].inspect(&name()).await.unwrap().holders.is_empty(), "a vote is left");
}

#[tokio::test(start_paused = true)]
async fn a_renewal_counts_a_server_once() {
    for when in ALWAYS {
        let moving = Moving::start().await;
        let held = moving.hold_on_two().await;
        moving.second_leads_to_first(when);
        let answer = moving.renew(&held).await;
        assert!(answer.is_err(), "{when:?}: one server has renewed twice: {answer:?}");
        // The second server's vote ends; the first one's is renewed.
        for _ in 0..5 {
            sleep(TTL / 3).await;
            let answer = moving.renew(&held).await;
            assert!(!matches!(answer, Ok(Renewal::Held(_))), "{when:?}: {answer:?}");
        }
        assert!(is_granted(&moving.theirs.try_acquire(&claim()).await), "{when:?}: it is free");
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_learns_that_one_server_is_left() {
    let moving = Moving::start().await;
    let (ours, theirs) = (Locker::new(moving.ours.clone()), Locker::new(moving.theirs.clone()));
    moving.addresses[2].is_cut(true);
    let guard = ours.lock("n").unwrap().ttl(TTL).acquire().await.unwrap();
    moving.second_leads_to_first(When::AtTheBeginning);
    guard.verify().await.expect_err("one server has confirmed it twice");
    let theirs = theirs.lock("n").unwrap().ttl(TTL).acquire().await.unwrap();
    assert!(!guard.is_held() && theirs.is_held(), "two holders");
    guard.lost().await;
}

#[tokio::test(start_paused = true)]
async fn a_release_counts_a_server_once() {
    for when in ALWAYS {
        let moving = Moving::start().await;
        let held = moving.hold_on_two().await;
        moving.second_leads_to_first(when);
        let answer = moving.ours.release(&held, ReleaseMode::now()).await;
        let is_clear = when == When::AtTheEnd && matches!(answer, Ok(Release::Released));
        assert!(is_clear || answer.is_err(), "{when:?}: one server has said it twice: {answer:?}");
    }
}

/// Releases in order although the answer to the first request arrives last.
#[tokio::test(start_paused = true)]
async fn a_release_counts_a_server_that_released_by_its_slow_address() {
    let moving = Moving::start().await;
    let held = moving.hold_on_all().await;
    moving.addresses[0].is_slow(true);
    moving.addresses[2].moves(When::Before, &moving.servers[0]);
    let answer = moving.ours.release(&held, ReleaseMode::now()).await;
    assert!(matches!(answer, Ok(Release::Released)), "two servers let it go: {answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_look_from_outside_counts_a_server_once() {
    for when in ALWAYS {
        let moving = Moving::start().await;
        moving.hold_on_two().await;
        moving.servers[1].evict(&name());
        moving.addresses[2].is_cut(false);
        moving.second_leads_to_first(when);
        let state = moving.ours.inspect(&name()).await;
        assert!(state.is_err(), "{when:?}: {state:?}");

        let moving = Moving::start().await;
        let held = moving.hold_on_two().await;
        moving.servers[1].evict(&name());
        moving.addresses[2].is_cut(false);
        moving.second_leads_to_first(when);
        let broken = moving.ours.break_lock(&name(), &held.owner).await;
        assert!(broken.is_err(), "{when:?}: {broken:?}");
    }
}

/// Counts each server still, and only once.
#[tokio::test(start_paused = true)]
async fn members_may_swap_their_addresses() {
    for when in ALWAYS {
        let moving = Moving::start().await;
        let held = moving.hold_on_two().await;
        moving.addresses[0].moves(when, &moving.servers[1]);
        moving.addresses[1].moves(when, &moving.servers[0]);
        // While they move, either server may have answered.
        let answer = moving.renew(&held).await;
        assert!(when != When::Before || matches!(answer, Ok(Renewal::Held(_))), "{answer:?}");
        let answer = moving.renew(&held).await;
        assert!(matches!(answer, Ok(Renewal::Held(_))), "{when:?}: {answer:?}");
        let answer = moving.ours.release(&held, ReleaseMode::now()).await;
        assert!(matches!(answer, Ok(Release::Released)), "{when:?}: {answer:?}");
        assert!(is_granted(&moving.theirs.try_acquire(&claim()).await), "{when:?}: it is free");
    }
}

/// Loses nothing by an address that is back at its server in time.
#[tokio::test(start_paused = true)]
async fn a_lock_outlives_an_address_that_comes_back() {
    let moving = Moving::start().await;
    let held = moving.hold_on_two().await;
    moving.second_leads_to_first(When::Before);
    moving.renew(&held).await.expect_err("one server has renewed twice");
    moving.addresses[1].moves(When::Before, &moving.servers[1]);
    let answer = moving.renew(&held).await;
    assert!(matches!(answer, Ok(Renewal::Held(_))), "{answer:?}");
}

/// Counts the old vote only, whichever address answers first. The third member took no part, and
/// its address leads to a server that is counted already.
#[tokio::test(start_paused = true)]
async fn a_lock_outlives_the_move_of_an_address_without_a_vote() {
    for (slow, third) in [(0, 0), (1, 1), (2, 0), (2, 1)] {
        let moving = Moving::start().await;
        let held = moving.hold_on_two().await;
        moving.addresses[2].moves(When::Before, &moving.servers[third]);
        moving.addresses[2].is_cut(false);
        moving.addresses[slow].is_slow(true);
        for nth in 1..=5 {
            sleep(TTL / 3).await;
            let answer = moving.renew(&held).await;
            assert!(
                matches!(answer, Ok(Renewal::Held(_))),
                "renewal {nth}, {third} answers twice, {slow} is slow: {answer:?}"
            );
        }
        assert!(!is_granted(&moving.theirs.try_acquire(&claim()).await), "two holders");
        let answer = moving.ours.release(&held, ReleaseMode::now()).await;
        assert!(matches!(answer, Ok(Release::Released)), "{third}, {slow} is slow: {answer:?}");
    }
}

/// Counts no late attempt at an address that leads to a server without an unbroken hold by then.
#[tokio::test(start_paused = true)]
async fn a_vote_that_landed_late_elsewhere_does_not_count_as_the_one_before() {
    let moving = Moving::start().await;
    let held = moving.hold_on_two().await;
    moving.addresses[2].is_cut(false);
    let fourth = Memory::new();
    moving.addresses[0].moves(When::Before, &fourth);
    moving.addresses[0].moves(When::Never, &fourth);
    let answer = moving.ours.try_acquire(&held).await;
    assert!(is_granted(&answer), "the second and the third vote: {answer:?}");
    assert!(!fourth.inspect(&name()).await.unwrap().holders.is_empty(), "it has landed");
    moving.addresses[0].is_cut(false);
    moving.addresses[2].is_cut(true);
    let answer = moving.renew(&held).await;
    assert!(answer.is_err(), "the fourth server was not asked before: {answer:?}");
}

/// Finds no vote of an earlier grant on a server that is no member.
#[tokio::test(start_paused = true)]
async fn a_vote_does_not_move_with_an_address() {
    let moving = Moving::start().await;
    let held = moving.hold_on_two().await;
    let fourth = Memory::new();
    moving.addresses[1].moves(When::Before, &fourth);
    let answer = moving.renew(&held).await;
    assert!(matches!(answer, Ok(Renewal::NotHeld)), "{answer:?}");
}

/// A memory that does not identify itself.
#[derive(Clone, Debug)]
struct Nameless;

#[async_trait]
impl Layer for Nameless {
    async fn identity(&self, _: &dyn Backend) -> Result<Option<Identity>, Fault> {
        Ok(None)
    }
}

#[tokio::test(start_paused = true)]
async fn members_that_may_be_the_same_server_are_refused() {
    let [one, other, third] = [(); 3].map(|()| Memory::new());
    let builder =
        Quorum::builder().member(one).member(other).member(Layered::new(Arc::new(third), Nameless));
    let error = builder.build().await.expect_err("the third may be the first");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let text = error.to_string();
    assert!(text.contains("member 1 (memory) and member 3 (memory)"), "{text}");
    assert!(text.contains("cannot tell which server it is"), "{text}");
}

/// Asks a member that comes later only after the quorum is made.
#[tokio::test(start_paused = true)]
async fn a_member_that_may_be_another_one_is_not_counted() {
    let servers = [Memory::new(), Memory::new()];
    let late = Layered::new(Arc::new(Memory::new()), Nameless);
    let up = Arc::new(AtomicBool::default());
    let is_up = Arc::clone(&up);
    let connect = move || {
        let (late, is_up) = (late.clone(), is_up.load(Ordering::SeqCst));
        async move {
            match is_up {
                true => Ok(Arc::new(late) as Arc<dyn Backend>),
                false => Err(Error::new(ErrorKind::Unavailable, "not there yet")),
            }
        }
    };
    let builder = servers.iter().cloned().fold(Quorum::builder(), QuorumBuilder::member);
    let quorum = builder.member_by("late", connect).members_remember().build().await.unwrap();
    up.store(true, Ordering::SeqCst);
    assert!(is_granted(&servers[0].try_acquire(&claim()).await));
    let answer = quorum.try_acquire(&claim()).await;
    assert!(!is_granted(&answer), "it may be the second member: {answer:?}");
}

/// Acquires on three healthy servers, of which one cannot identify itself and answers first.
#[tokio::test(start_paused = true)]
async fn a_member_that_cannot_tell_costs_no_other_vote() {
    for nameless in 0..3 {
        let moving = Moving::start().await;
        moving.addresses[nameless].is_nameless(true);
        let others = (0..3).filter(|&other| other != nameless);
        others.for_each(|other| moving.addresses[other].is_slow(true));
        let state = moving.ours.inspect(&name()).await;
        assert!(state.is_ok(), "member {nameless} cannot tell: {state:?}");
        let mut held = claim();
        match moving.ours.try_acquire(&held).await {
            Ok(Attempt::Acquired(grant)) => held.ticket = grant.ticket,
            other => panic!("member {nameless} cannot tell: {other:?}"),
        }
        // Now the third one votes, too.
        sleep(TTL / 100).await;
        let answer = moving.renew(&held).await;
        assert!(matches!(answer, Ok(Renewal::Held(_))), "member {nameless}: {answer:?}");
        let answer = moving.ours.release(&held, ReleaseMode::now()).await;
        assert!(matches!(answer, Ok(Release::Released)), "member {nameless}: {answer:?}");
    }
}

/// Covers, for example, a Redis user that was not allowed `INFO` for a moment.
#[tokio::test(start_paused = true)]
async fn a_member_that_could_not_tell_is_asked_again() {
    let moving = Moving::start().await;
    moving.addresses[0].is_nameless(true);
    drop(moving.ours.inspect(&name()).await);
    moving.addresses[0].is_nameless(false);
    moving.addresses[2].is_cut(true);
    let answer = moving.ours.try_acquire(&claim()).await;
    assert!(!is_granted(&answer), "it may be the second one, for all that is known: {answer:?}");
    sleep(Duration::from_secs(1)).await;
    let answer = moving.ours.try_acquire(&claim()).await;
    assert!(is_granted(&answer), "two members have told which they are: {answer:?}");
}
