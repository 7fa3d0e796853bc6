//! Entry points of the fuzz targets. Not a public API. Each panics on a broken property.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::backend::Claim;
use lock_core::clock::Moment;
use lock_core::url::Host;
use lock_core::{Label, LockName, OwnerId};
use redis::aio::AsyncPushSender;
use redis::{PushInfo, RedisError, Value as Answer, from_redis_value};

use crate::clock::ServerTime;
use crate::config::Config;
use crate::connection::address::{Address, Login, Sentinels, ServerLocation};
use crate::connection::client_state::ClientState;
use crate::connection::health::Health;
use crate::fault;
use crate::keys::{Keys, Names};
use crate::queue::{QueueReply, Queues};
use crate::slots::slot_of;
use crate::topology::cluster::{ranges, redirected};
use crate::topology::commands::{Info, parse_watch};
use crate::topology::pushes::Pushes;
use crate::topology::sentinel::{ListenerEvents, SentinelPushes, refusal};
use crate::value::Value;
use crate::verbs::acquire::AcquireReply;
use crate::verbs::renew::renewed;

/// The id of the client in its channel, and the locks for which its claims wait.
const CLIENT: &str = "00000000000000000000000000000000";
const LOCKS: [&str; 3] = ["n", "n", "n m"];

/// Parses the value of a lock. The same value results from its text.
pub fn value(data: &[u8]) {
    let Some(mut value) = Value::parse(data) else { return };
    let text = Value::text(&value.owner, value.token, value.label.as_ref());
    assert!(text.len() < Value::MAX_LEN, "{} bytes", text.len());
    value.is_marked = false;
    // Texts have no blanks at the end, which mark them.
    value.label = value.label.map(|label| Label::new(label.as_str().trim_end_matches(' ')));
    value.label.take_if(|label| label.as_str().is_empty());
    assert_eq!(Value::parse(text.as_bytes()), Some(value));
}

/// Makes the keys of two locks. All keys of a lock are in one slot, and no key serves two locks.
pub fn keys(names: Names, prefix: &str, locks: [&LockName; 2]) {
    let Ok(keys) = Keys::new(names, prefix) else { return };
    let owner = claim_of(0).owner;
    let mut taken: HashSet<String> = (0..3)
        .flat_map(|number| keys.for_trial(number).all().map(str::to_owned))
        .chain([keys.channel(CLIENT)])
        .collect();
    for name in &locks[..if locks[0] == locks[1] { 1 } else { 2 }] {
        let Ok(of_lock) = keys.of(name) else { continue };
        let channel = keys.channel_in(of_lock.slot(), CLIENT);
        assert_eq!(slot_of(&channel), of_lock.slot(), "{channel}");
        let all = of_lock.all().map(str::to_owned).into_iter().chain([of_lock.tombstone(&owner)]);
        for key in all {
            assert_eq!(slot_of(&key), of_lock.slot(), "{key}");
            assert!(taken.insert(key.clone()), "{key} is another key as well");
        }
        assert_eq!(Keys::parse(of_lock.lock()), Some(of_lock));
    }
}

/// Hands the lines of a text to the queue of a client with three claims, as replies if they have
/// that form, and else as messages.
pub fn messages(text: &str) {
    let queues = Queues::default();
    let claims = [1, 2, 3].map(claim_of);
    for (claim, lock) in claims.iter().zip(LOCKS) {
        queues.enter(claim, lock, "c".into());
    }
    for (at, line) in text.lines().enumerate() {
        let owner = &claims[at % claims.len()].owner;
        if let Some(reply) = queue_reply(line) {
            queues.on_reply(owner, &reply, || true);
        }
        let clock = (at % 2 == 0).then(|| ServerTime { asked: Moment::now(), time: 1 });
        if let Some(unclaimed) = queues.on_message(line, clock) {
            assert!(line.ends_with(&*unclaimed.lock), "{line} names another lock");
            let mut waiters = claims.iter().zip(LOCKS);
            let waits = waiters
                .any(|(claim, lock)| claim.owner == unclaimed.owner && *lock == *unclaimed.lock);
            assert!(!waits, "a waiter's grant is given back");
        }
        for claim in &claims {
            let _ = (queues.known_reply(&claim.owner), queues.must_watch(&claim.owner));
        }
    }
    claims.iter().for_each(|claim| queues.leave(&claim.owner));
    assert!(queues.is_empty(), "claims that leave leave no state");
}

/// Parses the reply of a server, and hands it to everything that reads replies.
pub fn reply(data: &[u8]) {
    let Ok(reply) = redis::parse_redis_value(data) else { return };
    let from = Host { name: "h".into(), port: 1 };
    let address = Address::Tcp { host: from.clone(), tls: false };
    let _ = from_redis_value::<AcquireReply>(reply.clone());
    if let Ok(answers) = from_redis_value::<Vec<(String, i64)>>(reply.clone()) {
        for answer in answers {
            let _ = renewed(&claim_of(1), Moment::now(), 1, false, answer);
        }
    }
    if let Ok(answers) = from_redis_value::<Vec<Answer>>(reply.clone()) {
        let _ = parse_watch(answers.clone());
        let (service, hosts, login) = ("s".into(), vec![from.clone()], Login::default());
        let sentinels = Sentinels { hosts, service, tls: false, login };
        if let Ok(ServerLocation { address, epoch }) = sentinels.location(&address, answers) {
            assert!(epoch.is_some() && !address.to_string().ends_with(":0"), "{address}");
        }
    }
    for (_, _, host) in ranges(&reply, &from).into_iter().flatten() {
        assert!(host.port != 0 && !host.name.is_empty(), "{host}");
    }
    if let Ok(text) = from_redis_value::<String>(reply.clone()) {
        let info = Info(text);
        assert!(info.get("run_id").is_none_or(|id| !id.contains('\n')));
    }
    if let Answer::Push { kind, data } = &reply {
        push(&PushInfo { kind: kind.clone(), data: data.clone() }, address.clone());
    }
    if let Err(error) = reply.extract_error() {
        errors(&error, &from, &address);
    }
}

fn push(push: &PushInfo, address: Address) {
    let mut client = ClientState::new(&Config::new("redis://h").expect("a URL"));
    client.id = Some(CLIENT.into());
    let server = ServerLocation { address, epoch: None };
    let health = Arc::new(Health::of(&server, 1));
    let pushes = Pushes { client: Arc::new(client), health, link: Weak::new() };
    let sentinel = SentinelPushes { service: "s".into(), events: Arc::<ListenerEvents>::default() };
    pushes.send(push.clone()).expect("it is read");
    sentinel.send(push.clone()).expect("it is read");
}

/// Classifies an error. Its text shows no owner id.
fn errors(error: &RedisError, from: &Host, address: &Address) {
    let _ = (fault::is_transient(error), fault::is_refused(error), fault::is_broken(error));
    if let Ok(host) = redirected(error, from) {
        assert_ne!(host.port, 0);
    }
    for fault in [fault::fault("fuzz", error), refusal(address, error)] {
        let text = fault.into_source().to_string();
        let mut words = text.split(|c: char| !c.is_ascii_hexdigit());
        assert!(words.all(|word| word.len() < 32), "{text} may show an owner");
    }
}

fn claim_of(number: u8) -> Claim {
    let owner: OwnerId = format!("{number:032x}").parse().expect("an owner");
    Claim::new(LockName::new("n").expect("a name"), owner, Duration::from_secs(60))
}

/// Parses `reply CONNECTION NOW ARRIVAL MS FLAGS`.
fn queue_reply(line: &str) -> Option<QueueReply> {
    let mut numbers = line.strip_prefix("reply ")?.split(' ').map(str::parse::<u64>);
    let mut next = || numbers.next()?.ok();
    let (connection, now, arrival) = (next()?, next()?, next()?);
    let (ms, flags) = (next()?, next()?);
    let is_set = |bit: u32| flags >> bit & 1 == 1;
    Some(QueueReply {
        asked: Moment::now(),
        connection,
        now,
        arrival,
        expires_in: is_set(0).then(|| Duration::from_millis(ms)),
        holder_is_ours: is_set(1),
        is_next: is_set(2),
        is_new: is_set(3),
        is_back: is_set(4),
    })
}
