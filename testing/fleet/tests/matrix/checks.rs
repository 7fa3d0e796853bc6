//! The checks, each for a holder and a waiter. Each returns its observation, for the
//! record.

use std::path::Path;
use std::time::Duration;

use lock_any::clock::{Moment, sleep};
use lock_bench_worker::clock::{MILLI, now};
use lock_conformance::proxy::{Direction, Fault};
use lock_fleet::{CLIENTS, Client, Extent, Renewal, Side};
use tokio::time::timeout;

use crate::load;
use crate::scene::{Answer, Check, Checked, SOON, Scene, Worker};

/// A check of the matrix.
pub(crate) struct CheckOf {
    pub(crate) name: &'static str,
    /// It needs a holder that renews.
    pub(crate) renews: bool,
    pub(crate) run: Check,
}

macro_rules! checks {
    ($($check:path: $name:literal $renews:literal,)*) => {
        &[$(CheckOf {
            name: $name,
            renews: $renews,
            run: |scene, holder| Box::pin($check(scene, holder)),
        },)*]
    };
}

pub(crate) const CHECKS: &[CheckOf] = checks! {
    excludes: "excludes" false,
    wakes: "wakes" false,
    killed: "killed" false,
    renewed: "renewed" true,
    paused: "paused" false,
    lost_reply: "lost_reply" false,
    late_reply: "late_reply" false,
    lost_data: "lost_data" false,
    load::counts: "load" false,
    load::counts_with_a_share: "load_with_a_share" false,
    slow_reply: "slow_reply" false,
};

impl CheckOf {
    /// Returns whether it makes sense. Load has no first holder.
    pub(crate) fn applies_to(&self, client: &Client, holder: Side) -> bool {
        match (self.name, client.extent) {
            ("slow_reply", extent) => extent == Extent::OtherKeys && holder == Side::Ours,
            (_, Extent::OtherKeys) => false,
            ("excludes", Extent::OtherLayout) => true,
            ("wakes", Extent::OtherLayout) => holder == Side::Theirs,
            (_, Extent::OtherLayout) => false,
            ("load", _) => holder == Side::Ours,
            ("load_with_a_share", _) => holder == Side::Ours && !client.share.is_empty(),
            _ => true,
        }
    }
}

/// A lease that outlasts a check.
const LONG: u64 = 60_000;

/// The lease of a waiter. One kind of waiter polls only when such a time is over.
const WAITING: u64 = 6_000;

/// The lease of a holder that is going to lose the lock. Some clients have whole seconds.
const SHORT: u64 = 2_000;

/// How often the waiter is released in a check of its wake-up.
const WAKES: u32 = 7;

/// The clients and the holder: one is refused while the other one holds, and served afterwards.
async fn excludes(scene: &Scene, holder: Side) -> Checked {
    let (mut first, mut second) = both(scene, holder).await?;
    first.ttl(LONG).await?;
    second.ttl(LONG).await?;
    must_be(&first.tries("n").await?, &Answer::Yes, "the lock is free")?;
    let refused = second.tries("n").await?;
    // Its layout is another one, so it cannot say more.
    if !matches!(refused, Answer::No | Answer::Refused(_)) {
        return Err(format!("two hold: the second one says {refused:?}"));
    }
    if scene.client.extent != Extent::OtherLayout {
        must_be(&refused, &Answer::No, "contention is not a failure")?;
    }
    first.lets_go("n").await?;
    must_be(&second.tries("n").await?, &Answer::Yes, "the lock is free again")?;
    must_not_be(&first.tries("n").await?, &Answer::Yes, "two hold")?;
    second.lets_go("n").await?;
    Ok(if refused == Answer::No { "yes".into() } else { "yes, by an error".into() })
}

/// The time from a release to the grant of a waiter, in milliseconds.
async fn wakes(scene: &Scene, holder: Side) -> Checked {
    let (mut first, mut second) = both(scene, holder).await?;
    first.ttl(LONG).await?;
    second.ttl(WAITING).await?;
    let mut delays = Vec::new();
    for round in 0..WAKES {
        let name = format!("wake-{round}-");
        must_be(&first.tries(&name).await?, &Answer::Yes, "the lock is free")?;
        waits(scene, holder.other(), &mut second, &name).await?;
        // At any point of the waiter's interval between two polls.
        sleep(Duration::from_millis(fastrand::u64(20..300))).await;
        let let_go = first.lets_go(&name).await?;
        let acquired = second.acquired().await?;
        if acquired < let_go {
            return Err("the waiter held it before the release".into());
        }
        delays.push((acquired - let_go) as f64 / MILLI as f64);
        second.lets_go(&name).await?;
    }
    delays.sort_by(f64::total_cmp);
    let median = delays[delays.len() / 2];
    Ok(format!(
        "{}–{} ms, median {}",
        short(delays[0]),
        short(delays[delays.len() - 1]),
        short(median)
    ))
}

/// Kills the holder; its lease ends, and the waiter is next.
async fn killed(scene: &Scene, holder: Side) -> Checked {
    let (mut first, mut second) = both(scene, holder).await?;
    first.ttl(SHORT).await?;
    second.ttl(WAITING).await?;
    let held = first.must("hold n").await?;
    let asked = held["asked"].as_u64().ok_or_else(|| format!("no time: {held}"))?;
    waits(scene, holder.other(), &mut second, "n").await?;
    first.peer.kill();
    let took = second.acquired().await?.saturating_sub(asked) / MILLI;
    // The server counts milliseconds.
    if took < SHORT - 10 {
        return Err(format!("the waiter got in {took} ms after the request of the holder"));
    }
    second.lets_go("n").await?;
    Ok(format!("{:.1} s after the grant", took as f64 / 1e3))
}

/// The waiter does not get in while the lease is renewed, for one and a half leases.
async fn renewed(scene: &Scene, holder: Side) -> Checked {
    // A busy machine may stand still for seconds, and each third is one renewal.
    const LEASE: u64 = 8_000;
    const STEP: Duration = Duration::from_millis(500);
    const STEPS: u32 = 24;
    let (mut first, mut second) = both(scene, holder).await?;
    first.ttl(LEASE).await?;
    second.ttl(WAITING).await?;
    let by_hand = holder == Side::Theirs && scene.client.renewal == Renewal::ByHand;
    let name = "n-0";
    if by_hand {
        must_be(&first.tries(name).await?, &Answer::Yes, "the lock is free")?;
    } else {
        first.must("keep n 1").await?;
    }
    waits(scene, holder.other(), &mut second, name).await?;
    for _ in 0..STEPS {
        sleep(STEP).await;
        if by_hand {
            must_be(&first.extends(name, LEASE).await?, &Answer::Yes, "it is held")?;
        }
    }
    let released = now();
    first.must(&if by_hand { format!("free {name}") } else { "drop".into() }).await?;
    let acquired = second.acquired().await?;
    if acquired < released {
        return Err("the waiter got in although the lease was renewed".into());
    }
    second.lets_go(name).await?;
    Ok(if by_hand { "yes, by calls".into() } else { "yes, by itself".into() })
}

/// Stops the holder until the waiter holds the lock, and has it do the rest then: a late look, a
/// late extension and a late release.
async fn paused(scene: &Scene, holder: Side) -> Checked {
    let mut seen = late(scene, holder, scene.worker(holder).await?, "n").await?;
    if holder == Side::Ours {
        // A guard knows by the clock that it is late. This one sends the requests all the same.
        let detached = late(scene, holder, scene.detached().await?, "m").await?;
        let (_, requests) = detached.split_once(", ").expect("there are three answers");
        seen += "; detached: ";
        seen += requests;
    }
    Ok(seen)
}

async fn late(scene: &Scene, holder: Side, mut first: Worker, name: &str) -> Checked {
    let mut second = scene.worker(holder.other()).await?;
    first.ttl(SHORT).await?;
    second.ttl(LONG / 2).await?;
    must_be(&first.tries(name).await?, &Answer::Yes, "the lock is free")?;
    let before = scene.values(name);
    // It never waits for a message, which one kind of waiter does in vain for a whole lease.
    first.peer.stop();
    let until = Moment::now() + SOON;
    while second.tries(name).await? != Answer::Yes {
        if Moment::now() > until {
            return Err("the lease of the stopped holder does not end".into());
        }
        sleep(Duration::from_millis(50)).await;
    }
    let (values, rest) = (scene.values(name), scene.rest(name));
    if before.iter().zip(&values).all(|(old, now)| now.is_empty() || old == now) {
        return Err(format!(
            "two hold: the second one says held, and the key is the first one's, for {rest} ms"
        ));
    }
    first.peer.cont();
    let held = first.is_held(name).await?;
    let extended = first.extends(name, 10 * LONG).await?;
    let freed = first.frees(name).await?;
    if holder == Side::Ours {
        must_not_be(&extended, &Answer::Yes, "ours extends a lock that it lost")?;
        must_not_be(&freed, &Answer::Yes, "ours releases a lock that it lost")?;
    }
    is_untouched(scene, name, &values, rest)?;
    second.lets_go(name).await?;
    Ok(format!("held: {}, extend: {}, release: {}", held.word(), extended.word(), freed.word()))
}

/// Loses the reply to a grant, together with the connection.
async fn lost_reply(scene: &Scene, holder: Side) -> Checked {
    const LEASE: u64 = 5_000;
    let (mut first, mut second) = both(scene, holder).await?;
    first.ttl(LEASE).await?;
    second.ttl(WAITING).await?;
    warm(&mut first).await?;
    let hit = scene.proxy(holder).cut_after(scene.grant_of(holder, "lost-one"));
    let asked = Moment::now();
    let said = first.tries("lost-one").await?;
    let waited = Moment::now().saturating_since(asked);
    let cut = timeout(SOON, hit).await.map_err(|_| "its request did not come by")?;
    cut.map_err(|error| format!("its reply was not cut: {error}"))?;
    let (mut left, rest) = (0, scene.rest("lost-one"));
    if said == Answer::Yes {
        let majority = scene.servers.len() / 2 + 1;
        if scene.copies("lost-one") < majority {
            return Err("it says held, and the server has no lock".into());
        }
        must_be(&second.tries("lost-one").await?, &Answer::No, "it is held")?;
        first.lets_go("lost-one").await?;
    } else if rest > i64::try_from(2 * LEASE).expect("small") {
        return Ok(format!("{}; left for {} s", said.word(), rest / 1_000));
    } else {
        let began = Moment::now();
        while second.tries("lost-one").await? != Answer::Yes {
            if Moment::now().saturating_since(began) > SOON {
                return Err("the lock is left for ever".into());
            }
            sleep(Duration::from_millis(20)).await;
        }
        left = Moment::now().saturating_since(began).as_millis();
        second.lets_go("lost-one").await?;
    }
    Ok(match (said, left) {
        (Answer::Yes, _) => "held".into(),
        (said, _) if waited > Duration::from_millis(LEASE) => {
            format!("{}, after {:.0} s", said.word(), waited.as_secs_f64())
        }
        (said, 0..500) => format!("{}; gone at once", said.word()),
        (said, _) => format!("{}; left for its lease", said.word()),
    })
}

/// Delays the reply to a grant until the waiter holds the lock.
async fn late_reply(scene: &Scene, holder: Side) -> Checked {
    let (mut first, mut second) = both(scene, holder).await?;
    first.ttl(SHORT).await?;
    second.ttl(LONG / 2).await?;
    warm(&mut first).await?;
    let proxy = scene.proxy(holder);
    let mut request = proxy.hold(scene.grant_of(holder, "late-one"));
    first.peer.tell("try late-one");
    let caught = timeout(SOON, request.caught()).await.map_err(|_| "it sends no request")?;
    caught.map_err(|error| error.to_string())?;
    proxy.set(Fault::Lose(Direction::ToClient));
    request.deliver().await.map_err(|error| error.to_string())?;
    eventually("the grant", || scene.copies("late-one") > scene.servers.len() / 2).await?;
    if scene.rest("late-one") > i64::try_from(2 * SHORT).expect("small") {
        let rest = scene.rest("late-one") / 1_000;
        return Ok(format!("waits; its lock lasts {rest} s until a second request"));
    }
    let until = Moment::now() + SOON;
    while second.tries("late-one").await? != Answer::Yes {
        if Moment::now() > until {
            return Err("the lease of the late holder does not end".into());
        }
        sleep(Duration::from_millis(50)).await;
    }
    let (values, rest) = (scene.values("late-one"), scene.rest("late-one"));
    proxy.heal();
    let said = first.tried().await?;
    let held = match said {
        Answer::Yes => first.is_held("late-one").await?,
        _ => Answer::No,
    };
    if holder == Side::Ours {
        must_not_be(&said, &Answer::Yes, "ours returns a lock that has ended")?;
    }
    if said == Answer::Yes {
        first.frees("late-one").await?;
    }
    is_untouched(scene, "late-one", &values, rest)?;
    second.lets_go("late-one").await?;
    Ok(match said {
        Answer::Yes => format!("success; held: {}", held.word()),
        said => said.word().into(),
    })
}

/// Deletes the server's data while the lock is held.
async fn lost_data(scene: &Scene, holder: Side) -> Checked {
    const LEASE: u64 = 4_000;
    let (mut first, mut second) = both(scene, holder).await?;
    first.ttl(LEASE).await?;
    second.ttl(LONG / 2).await?;
    // Without another holder.
    must_be(&first.tries("lost").await?, &Answer::Yes, "the lock is free")?;
    scene.lose_data();
    let extended = first.extends("lost", LONG / 2).await?;
    let taken_again = scene.copies("lost") > 0;
    first.frees("lost").await?;
    // With another holder: nothing that the first one does ends the lock of the second.
    scene.lose_data();
    must_be(&first.tries("gone").await?, &Answer::Yes, "the lock is free")?;
    scene.lose_data();
    must_be(&second.tries("gone").await?, &Answer::Yes, "the server has forgotten the lock")?;
    let (values, rest) = (scene.values("gone"), scene.rest("gone"));
    let began = Moment::now();
    let mut held = first.is_held("gone").await?;
    let renews = holder == Side::Ours || scene.client.renewal == Renewal::ByItself;
    while renews
        && held == Answer::Yes
        && Moment::now().saturating_since(began) < Duration::from_millis(LEASE * 3 / 2)
    {
        sleep(Duration::from_millis(50)).await;
        held = first.is_held("gone").await?;
    }
    let freed = first.frees("gone").await?;
    is_untouched(scene, "gone", &values, rest)?;
    second.lets_go("gone").await?;
    let again = if taken_again && extended == Answer::Yes { " (takes it again)" } else { "" };
    if holder == Side::Ours && (held != Answer::No || extended == Answer::Yes) {
        return Err(format!("ours does not notice the loss: {held:?}, {extended:?}"));
    }
    Ok(format!(
        "extend: {}{again}, held: {}, release: {}",
        extended.word(),
        held.word(),
        freed.word()
    ))
}

/// Delays the request of a waiter that takes several keys, of which ours is one. It gives up after
/// 20 ms, and asks for the other keys next.
async fn slow_reply(scene: &Scene, holder: Side) -> Checked {
    const DELAY: Duration = Duration::from_millis(30);
    const ATTEMPTS: u32 = 20;
    let (mut first, mut second) = both(scene, holder).await?;
    first.ttl(LONG).await?;
    second.ttl(LONG).await?;
    warm(&mut second).await?;
    for attempt in 0..ATTEMPTS {
        let name = format!("slow-{attempt}-");
        must_be(&first.tries(&name).await?, &Answer::Yes, "the lock is free")?;
        let key = scene.client.key(&name);
        let mut request = scene.proxy(holder.other()).hold(key.as_str());
        second.peer.tell(&format!("try {name}"));
        let caught = timeout(SOON, request.caught()).await.map_err(|_| "it sends no request")?;
        caught.map_err(|error| error.to_string())?;
        sleep(DELAY).await;
        request.deliver().await.map_err(|error| error.to_string())?;
        let answer = second.tried().await?;
        must_be(&first.is_held(&name).await?, &Answer::Yes, "it is renewed")?;
        if answer == Answer::Yes {
            return Ok("two hold".into());
        }
        first.lets_go(&name).await?;
    }
    Ok(format!("never in {ATTEMPTS} attempts"))
}

/// The checks fail where both sides use different keys.
pub(crate) fn another_prefix_is_noticed(target: &Path) -> Result<(), String> {
    let client = CLIENTS.iter().find(|client| client.name == "redis-py-debian").expect("Debian's");
    let on_other_keys: &[(&str, Side)] = &[
        ("excludes", Side::Ours),
        ("excludes", Side::Theirs),
        ("killed", Side::Theirs),
        ("renewed", Side::Ours),
        ("load", Side::Ours),
    ];
    for (name, holder) in on_other_keys {
        let check = CHECKS.iter().find(|check| check.name == *name).expect("there is one");
        let scene = Scene::start(client, target, "elsewhere:");
        if let Ok(seen) = scene.run(check.run, *holder) {
            return Err(format!("{name}, {holder:?} first: on different keys it passes: {seen}"));
        }
    }
    Ok(())
}

async fn both(scene: &Scene, holder: Side) -> Result<(Worker, Worker), String> {
    Ok((scene.worker(holder).await?, scene.worker(holder.other()).await?))
}

/// Loads scripts, so that the next grant is one request.
async fn warm(worker: &mut Worker) -> Result<(), String> {
    must_be(&worker.tries("warm").await?, &Answer::Yes, "the lock is free")?;
    // Its lease may be over on a busy machine.
    worker.frees("warm").await.map(drop)
}

/// Makes `worker` wait for the lock, and returns when its first request is on its way.
async fn waits(scene: &Scene, side: Side, worker: &mut Worker, name: &str) -> Result<(), String> {
    let mut requests = scene.proxy(side).count(name);
    worker.peer.tell(&format!("hold {name}"));
    let sent = timeout(SOON, requests.reaches(1)).await;
    sent.map_err(|_| "the waiter sends no request")?.map_err(|error| error.to_string())
}

async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) -> Result<(), String> {
    let until = Moment::now() + SOON;
    while !is_so() {
        if Moment::now() > until {
            return Err(format!("{what} does not come"));
        }
        sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

/// Checks that the lock of the second holder is as it was, and its lease neither cut nor prolonged
/// by the first one.
fn is_untouched(scene: &Scene, name: &str, values: &[String], rest: i64) -> Result<(), String> {
    let now = scene.values(name);
    let kept = values.iter().zip(&now).filter(|(old, now)| !old.is_empty() && old == now).count();
    if kept <= values.len() / 2 {
        return Err("the late holder has changed the lock of the next one".into());
    }
    let left = scene.rest(name);
    if left <= 0 || left > rest.max(i64::try_from(LONG / 2).expect("small")) + 1_000 {
        return Err(format!("the late holder has changed the lease: {rest} ms, then {left} ms"));
    }
    Ok(())
}

fn must_be(answer: &Answer, expected: &Answer, why: &str) -> Result<(), String> {
    (answer == expected).then_some(()).ok_or_else(|| format!("{answer:?}, although {why}"))
}

fn must_not_be(answer: &Answer, bad: &Answer, what: &str) -> Result<(), String> {
    (answer != bad).then_some(()).ok_or_else(|| what.to_owned())
}

/// Writes milliseconds with two digits.
fn short(ms: f64) -> String {
    if ms < 9.95 { format!("{ms:.1}") } else { format!("{ms:.0}") }
}
