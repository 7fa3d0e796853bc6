//! Invariants that hold at the server after each script: the promises of the crate's documentation
//! about the queue. Clients may recover from a script that breaks one, by a poll one lease later.
//! Here it shows at once.

use std::collections::BTreeMap;

use super::keyspace::{Bytes, Keyspace};
use super::order::shown;
use super::wire::Reply;

/// The known state of the locks from one script to the next.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// For each granted lock its last recipient, if its process was not heard of since.
    silent: BTreeMap<Bytes, Option<Sent>>,
    /// Released owners, and until when their attempts are to be refused.
    gone: BTreeMap<Bytes, u64>,
    /// Since when a release has left a lock free, and from when on one may do so again.
    shares: BTreeMap<Bytes, (Option<u64>, u64)>,
}

/// In µs: so long after a release an attempt may still arrive.
const REMEMBERED: u64 = 60_000_000;

/// In µs: a poll that is later than that is not made up for.
const LONGEST_DELAY: u64 = 1_000_000;

#[derive(Clone, Debug)]
struct Sent {
    owner: Bytes,
    channel: Bytes,
}

/// A message on a channel, and the number of its listeners.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) channel: Bytes,
    pub(crate) text: Bytes,
    pub(crate) heard: i64,
}

/// The parameters of a script, before it runs.
pub(crate) struct Asked<'a> {
    locks: Vec<OfLock>,
    args: &'a [Bytes],
    /// It releases this owner, whose attempt may still arrive.
    lets_go: Option<&'a Bytes>,
    /// It takes this entry out of the line.
    leaves: Option<&'a Bytes>,
}

struct OfLock {
    lock: Bytes,
    queue: Bytes,
    places: Bytes,
    share: Bytes,
    /// The script knows the share key. A late renewal of a lost holder does not.
    knows_share: bool,
    /// The lock that it held, and for how many ms more.
    held: Option<(Bytes, Option<u64>)>,
    /// The queued owners whose processes are there.
    waiting: Vec<Bytes>,
    /// The holder and all queued owners.
    owners: Vec<Bytes>,
    /// The number of the token key.
    number: Option<u64>,
}

impl<'a> Asked<'a> {
    pub(crate) fn before(data: &Keyspace, keys: &[Bytes], args: &'a [Bytes]) -> Self {
        let knows_share = keys.iter().any(|key| key.ends_with(b"%share"));
        let of = |lock: &Bytes, queue: &Bytes, places: &Bytes| OfLock {
            lock: lock.clone(),
            queue: queue.clone(),
            places: places.clone(),
            share: part(lock, b"share"),
            knows_share,
            held: data.text(lock).map(|value| (value.to_vec(), data.lasts_for(lock))),
            waiting: waiting(data, queue, places),
            owners: owners(data, lock, queue),
            number: number(data, lock),
        };
        // A lock, its fence, its line, its places, and one more; a renewal names five of each lock,
        // others a sixth. A quick renewal and a plain release name nothing but locks.
        let names_parts = keys.get(1).is_some_and(|key| key.ends_with(b"%token"));
        let locks: Vec<_> = match names_parts {
            true => keys.chunks_exact(5).map(|key| of(&key[0], &key[2], &key[3])).collect(),
            false => keys
                .iter()
                .map(|lock| of(lock, &part(lock, b"queue"), &part(lock, b"procs")))
                .collect(),
        };
        // Only a release names a tombstone in that place.
        let names_tombstone = keys.get(5).is_some_and(|key| contains(key, b"}%gone:"));
        let lets_go = match args {
            [owner, _, uncertain, ..] if names_tombstone && uncertain == b"1" => Some(owner),
            _ => None,
        };
        let leaves = args.get(3).filter(|entry| names_tombstone && !entry.is_empty());
        Self { locks, args, lets_go, leaves }
    }
}

impl Audit {
    /// Returns the violations after the script has run, answered, and sent these messages.
    pub(crate) fn after(
        &mut self,
        keys: &Keyspace,
        it: &Asked,
        answer: &Reply,
        sent: &[Message],
    ) -> Vec<String> {
        let mut wrong = Vec::new();
        if let (Some(owner), Reply::Integer(_)) = (it.lets_go, answer) {
            self.gone.insert(owner.clone(), keys.now + REMEMBERED);
        }
        for of in &it.locks {
            wrong.extend(is_prolonged(keys, of, it.args));
            wrong.extend(self.is_back(keys, of));
            wrong.extend(self.shares_too_much(keys, of));
            wrong.extend(is_unnoticed(keys, of));
            let owner = keys.text(&of.lock).map(|value| value.get(..32).unwrap_or_default());
            let is_left = |(_, member): &&(f64, Bytes)| Some(member) == it.leaves;
            wrong.extend(
                keys.members(&of.queue)
                    .iter()
                    .find(is_left)
                    .map(|(_, member)| format!("{} has left, and stands in line", shown(member))),
            );
            let mut line = keys.members(&of.queue).iter().map(|(_, member)| member);
            wrong.extend(match owner {
                None if of.held.is_some() => waiting(keys, &of.queue, &of.places)
                    .first()
                    .filter(|next| !is_shared(keys, of, next, sent))
                    .map(|member| format!("the lock was let go, and {} not served", shown(member))),
                Some(owner) if owner.len() == 32 => line
                    .find(|member| member.starts_with(owner))
                    .map(|member| format!("{} holds the lock, and stands in line", shown(member))),
                _ => None,
            });
            if let Some(silent) = self.silent.get_mut(&of.lock) {
                *silent = silent.take().filter(|sent| !sent.speaks(it.args));
                wrong.extend(is_passed_over(keys, of, silent.as_ref(), it.args));
            }
        }
        wrong.extend(sent.iter().filter_map(|message| self.sends(keys, &it.locks, message)));
        wrong
    }

    /// Returns the violation if a released claim has the lock or a queue entry. A loss of data may
    /// bring a claim back before that.
    fn is_back(&self, keys: &Keyspace, of: &OfLock) -> Option<String> {
        let is_gone = |owner: &Bytes| self.gone.get(owner).is_some_and(|until| *until > keys.now);
        let mut owners = owners(keys, &of.lock, &of.queue).into_iter();
        let back = owners.find(|owner| is_gone(owner) && !of.owners.contains(owner))?;
        Some(format!("{} was let go, and is back", shown(&back)))
    }

    /// Returns the violation if releases leave the lock free, while claims wait, for more than a
    /// tenth of the time. It counts until a claim has the lock, up to the longest delay that is
    /// made up for. No time counts if a foreign client has taken the lock meanwhile.
    fn shares_too_much(&mut self, keys: &Keyspace, of: &OfLock) -> Option<String> {
        const ROUNDING: u64 = 20_000;
        let (since, again) = self.shares.entry(of.lock.clone()).or_default();
        // A time that is over does not come back when the clock is set back.
        if *again <= keys.now + ROUNDING {
            *again = 0;
        }
        let is_free = keys.text(&of.lock).is_none();
        let is_wanted = is_free && !waiting(keys, &of.queue, &of.places).is_empty();
        match (&of.held, is_wanted) {
            (Some(_), true) => {
                *since = Some(keys.now);
                return (*again > 0)
                    .then(|| format!("{} was left free again too early", shown(&of.lock)));
            }
            (None, true) => {}
            (held, false) => {
                let free = since.take().map(|from| (from, keys.now.saturating_sub(from)));
                // After nine times the share nothing is known of it any more.
                let is_seen = of.knows_share && held.is_none();
                let is_known = is_seen && !is_free && keys.text(&of.share).is_some();
                if let Some((from, free)) = free.filter(|_| is_known) {
                    *again = from + 10 * free.min(LONGEST_DELAY);
                }
            }
        }
        None
    }

    /// Returns the violation in a message that grants one of these locks.
    fn sends(&mut self, keys: &Keyspace, locks: &[OfLock], message: &Message) -> Option<String> {
        let text = String::from_utf8_lossy(&message.text).into_owned();
        let (owner, number, lease, now, lock) = match text.split(' ').collect::<Vec<_>>()[..] {
            ["grant", owner, number, lease, now, _, lock] => (owner, number, lease, now, lock),
            ["grant", ..] => return Some(format!("a grant has another form: {text}")),
            _ => return None,
        };
        let name = shown(owner.as_bytes());
        let holds = format!("{owner} {number}");
        let value_of = |of: &OfLock| keys.text(&of.lock).unwrap_or_default();
        let is_given =
            |of: &&OfLock| of.lock == lock.as_bytes() && value_of(of).starts_with(owner.as_bytes());
        let given = locks.iter().find(is_given);
        let Some(of) = given else {
            // It was taken back, since no client has received it.
            return (message.heard > 0).then(|| format!("{name} was sent a lock that it has not"));
        };
        let lasts = keys.lasts_for(&of.lock).unwrap_or_default();
        let is_true = value_of(of).starts_with(holds.as_bytes())
            && lease == lasts.to_string()
            && now == keys.now.to_string();
        let (channel, _) = split(&message.channel);
        let channel = channel.to_vec();
        let sent = Sent { owner: owner.as_bytes().to_vec(), channel: channel.clone() };
        let before = self.silent.insert(of.lock.clone(), Some(sent)).flatten();
        let has_not_answered = before.is_some_and(|before| before.channel == channel);
        match () {
            () if message.heard == 0 => {
                Some(format!("{name} has the lock, and does not hear of it"))
            }
            () if !is_true => Some(format!("{name} was told {text:?} of a lock for {lasts} ms")),
            () if has_not_answered && of.held.is_none() => Some(format!(
                "{name} is of a process that did not answer when it was sent the lock"
            )),
            () if until(keys, &of.places, &channel).is_some_and(|until| until <= keys.now) => {
                Some(format!("{name} is of a process whose places have lapsed"))
            }
            () => None,
        }
    }
}

impl Sent {
    /// Returns true if the arguments name the owner, or the channel of its process.
    fn speaks(&self, args: &[Bytes]) -> bool {
        let Self { owner, channel } = self;
        args.iter().any(|arg| {
            arg.starts_with(owner) || arg.starts_with(channel) || channel_of(arg) == channel
        })
    }
}

/// Returns true if the lock is left to clients that poll, and the next process is going to ask.
fn is_shared(keys: &Keyspace, of: &OfLock, next: &[u8], sent: &[Message]) -> bool {
    let share =
        keys.text(&of.share).and_then(|share| std::str::from_utf8(share).ok()?.parse().ok());
    let left = |share: u64| keys.lasts_for(&of.share)?.checked_sub(9 * share);
    let is_left =
        share.is_some_and(|share| left(share).is_some_and(|left| left > 0 && left <= share));
    let is_next = |it: &Message| it.heard > 0 && split(&it.channel).0 == channel_of(next);
    is_left && sent.iter().any(|it| is_next(it) && it.text.starts_with(b"next "))
}

/// Returns the violation if a claim has lost its entry without leaving the queue, and its process
/// is not the silent one.
fn is_passed_over(
    keys: &Keyspace,
    of: &OfLock,
    silent: Option<&Sent>,
    args: &[Bytes],
) -> Option<String> {
    let holder = keys.text(&of.lock).and_then(|value| value.get(..32));
    let has_lost = |member: &&Bytes| {
        let (owner, channel) = (member.get(..32), channel_of(member));
        until(keys, &of.places, channel).is_none()
            && owner != holder
            && !args.iter().any(|arg| owner.is_some_and(|owner| arg.starts_with(owner)))
            && silent.is_none_or(|silent| silent.channel != channel)
            && !is_given_up(member, args)
    };
    let member = of.waiting.iter().find(has_lost)?;
    Some(format!("{} has lost its place, and its process was heard of", shown(member)))
}

/// Returns true if its process gives a lock back, and does not name its owner.
fn is_given_up(member: &[u8], args: &[Bytes]) -> bool {
    let [_, _, channel, _, known] = args else { return false };
    channel == channel_of(member) && !contains(known, member.get(..32).unwrap_or(member))
}

/// Returns the violation if a lease was prolonged and its owner did not ask for that.
fn is_prolonged(keys: &Keyspace, of: &OfLock, args: &[Bytes]) -> Option<String> {
    let value = keys.text(&of.lock)?;
    let owner = value.get(..32)?;
    let (before, lasted) = of.held.as_ref()?;
    let is_same = before.trim_ascii_end() == value.trim_ascii_end();
    let lasts_longer = is_same && keys.lasts_for(&of.lock) > *lasted;
    (lasts_longer && !args.iter().any(|arg| arg.starts_with(owner)))
        .then(|| format!("the lease of {} was prolonged by others", shown(owner)))
}

/// Returns the violation if a claim was queued, and the next attempt without a script could
/// overtake it: that one does not look at the queue, but at its number.
fn is_unnoticed(keys: &Keyspace, of: &OfLock) -> Option<String> {
    let before = of.number?;
    let mut queued = keys.members(&of.queue).iter().filter_map(|(_, member)| member.get(..32));
    let new = queued.find(|owner| !of.owners.iter().any(|known| known == owner))?;
    (number(keys, &of.lock)? <= before)
        .then(|| format!("{} was queued, and the token key stays at {before}", shown(new)))
}

/// Returns the number of the token key, if it is one.
fn number(keys: &Keyspace, lock: &[u8]) -> Option<u64> {
    std::str::from_utf8(keys.text(&part(lock, b"token"))?).ok()?.parse().ok()
}

/// Returns the holder and the queued owners.
fn owners(keys: &Keyspace, lock: &[u8], queue: &[u8]) -> Vec<Bytes> {
    let waiting = keys.members(queue).iter().map(|(_, member)| &**member);
    let names = keys.text(lock).into_iter().chain(waiting);
    names.filter_map(|name| name.get(..32)).map(<[u8]>::to_vec).collect()
}

/// Returns the next owner after a release.
pub(crate) fn next_in_line(keys: &Keyspace, lock: &[u8]) -> Option<Bytes> {
    waiting(keys, &part(lock, b"queue"), &part(lock, b"procs")).into_iter().next()
}

/// Returns the key of a part of the lock's state.
fn part(lock: &[u8], name: &[u8]) -> Bytes {
    [b"{", lock, b"}%", name].concat()
}

/// Returns the reachable queue entries, in their order.
fn waiting(keys: &Keyspace, queue: &[u8], places: &[u8]) -> Vec<Bytes> {
    let line = keys.members(queue).iter().map(|(_, member)| member);
    line.filter(|member| is_there(keys, places, member)).cloned().collect()
}

/// Returns true if the process listens and its entries last.
fn is_there(keys: &Keyspace, places: &[u8], member: &[u8]) -> bool {
    let channel = channel_of(member);
    until(keys, places, channel).is_some_and(|until| {
        let connection = format!(":{:03}", until % 1000).into_bytes();
        until > keys.now && keys.is_heard(&[channel, &connection].concat())
    })
}

/// Splits a channel into that of the process and the part of a connection.
fn split(channel: &[u8]) -> (&[u8], &[u8]) {
    channel.split_at(channel.len().saturating_sub(4))
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|at| at == part)
}

/// Returns the channel of a queue entry.
fn channel_of(member: &[u8]) -> &[u8] {
    member.split(|byte| *byte == b' ').nth(1).unwrap_or_default()
}

/// Returns the expiry of a process's entries.
fn until(keys: &Keyspace, places: &[u8], channel: &[u8]) -> Option<u64> {
    let mut places = keys.members(places).iter();
    places.find(|(_, of)| of == channel).map(|(until, _)| *until as u64)
}

/// Checks a clock that is set back, before and after the time in which the lock must not be left
/// free again.
#[test]
fn a_clock_that_is_set_back_brings_no_time_back() {
    const HELD: u64 = 10_000_000;
    let owner = vec![b'1'; 32];
    let member = [&owner[..], b" c"].concat();
    let words = |words: &[&[u8]]| words.iter().map(|word| word.to_vec()).collect::<Vec<_>>();
    let is_too_early = |seen: &[u64]| {
        let mut keys = Keyspace::default();
        keys.now = seen[0];
        keys.peers.insert(1, Default::default());
        let _ = keys.run_of_connection(&words(&[b"SUBSCRIBE", b"c:001"]), 1);
        let lasts = (100 * HELD + 1).to_string();
        for command in [
            words(&[b"ZADD", b"q", b"1", &member]),
            words(&[b"ZADD", b"p", lasts.as_bytes(), b"c"]),
        ] {
            keys.run(&command, None, false).unwrap();
        }
        let mut audit = Audit::default();
        audit.shares.insert(b"l".to_vec(), (None, HELD));
        let mut wrong = Vec::new();
        for (index, now) in seen.iter().enumerate() {
            keys.now = *now;
            let is_released = index + 1 == seen.len();
            let of_lock = OfLock {
                lock: b"l".to_vec(),
                queue: b"q".to_vec(),
                places: b"p".to_vec(),
                share: b"s".to_vec(),
                knows_share: true,
                held: is_released.then(|| (owner.clone(), None)),
                waiting: Vec::new(),
                owners: Vec::new(),
                number: None,
            };
            let asked = Asked { locks: vec![of_lock], args: &[], lets_go: None, leaves: None };
            wrong = audit.after(&keys, &asked, &Reply::Integer(1), &[]);
        }
        wrong.iter().any(|it| it.ends_with("was left free again too early"))
    };
    assert!(is_too_early(&[HELD / 2]));
    assert!(is_too_early(&[HELD * 9 / 10, HELD / 2]));
    assert!(!is_too_early(&[HELD]));
    assert!(!is_too_early(&[HELD, HELD / 2]), "the time was over before");
}
