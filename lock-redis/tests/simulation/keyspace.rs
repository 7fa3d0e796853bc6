//! The data of the stand-in, and its commands: those of our scripts and clients, and those that an
//! operator of a test gives.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::audit::Message;
use super::wire::{Reply, Request};

pub(crate) type Bytes = Vec<u8>;

/// The number of a connected client.
pub(crate) type Peer = u64;

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// The data of a server, and the clients that hear of them.
#[derive(Debug, Default)]
pub(crate) struct Keyspace {
    keys: BTreeMap<Bytes, Entry>,
    /// The server's clock, in µs since 1970.
    pub(crate) now: u64,
    /// The memory limit is reached.
    pub(crate) is_full: bool,
    /// It deletes a key with a certain value without a script.
    pub(crate) is_newer: bool,
    pub(crate) peers: BTreeMap<Peer, Listener>,
    /// The client whose command runs: it hears of changes after its answer.
    pub(crate) current: Option<Peer>,
    /// The messages that it gets then.
    pub(crate) afterwards: Vec<u8>,
    /// The clients to notify when a key changes: once.
    tracked: BTreeMap<Bytes, BTreeSet<Peer>>,
    /// The changes of queue entries and locks, by which the order of a queue is judged.
    pub(crate) notes: Vec<Note>,
    /// The messages on channels since the last inspection.
    pub(crate) messages: Vec<Message>,
    /// Failures of scripts that must not fail, and forbidden effects.
    pub(crate) failures: Vec<String>,
}

#[derive(Clone, Debug)]
struct Entry {
    value: Value,
    /// In ms since 1970.
    expires: Option<u64>,
}

#[derive(Clone, Debug)]
enum Value {
    Text(Bytes),
    /// In order.
    Sorted(Vec<(f64, Bytes)>),
}

/// The messages to a client, and their causes.
#[derive(Debug, Default)]
pub(crate) struct Listener {
    channels: BTreeSet<Bytes>,
    is_tracking: bool,
    /// The reads of the next command are tracked.
    is_caching: bool,
    /// The bytes to send.
    pub(crate) out: Vec<u8>,
}

/// A change that matters for the order in which waiters are served.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Note {
    /// Stands in that line from now on, by this number.
    Stood { queue: Bytes, member: Bytes, arrival: f64 },
    /// Does not any more.
    Left { queue: Bytes, member: Bytes },
    /// A client has written this key.
    Written { key: Bytes, value: Bytes },
    /// Nothing is as it was.
    Lost,
}

/// Whether a command may change something, and whether it is refused at the memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nature {
    pub(crate) writes: bool,
    needs_memory: bool,
}

pub(crate) fn nature(command: &str) -> Nature {
    let writes = matches!(
        command,
        "SET"
            | "INCRBY"
            | "DEL"
            | "DELIFEQ"
            | "PEXPIRE"
            | "ZADD"
            | "ZREM"
            | "ZREMRANGEBYSCORE"
            | "FLUSHALL"
    );
    Nature { writes, needs_memory: matches!(command, "SET" | "INCRBY" | "ZADD") }
}

type Answer = Result<Reply, String>;

impl Keyspace {
    /// Runs a command of a script, or of a client. `may_refuse`: the script has written nothing so
    /// far.
    pub(crate) fn run(&mut self, words: &Request, by: Option<Peer>, may_refuse: bool) -> Answer {
        let name = name_of(words);
        if may_refuse && self.is_full && nature(&name).needs_memory {
            return Err(OUT_OF_MEMORY.to_owned());
        }
        let args: Vec<&[u8]> = words[1..].iter().map(Vec::as_slice).collect();
        match (&*name, &args[..]) {
            ("TIME", []) => {
                let parts = [self.now / 1_000_000, self.now % 1_000_000];
                Ok(Reply::Array(parts.iter().map(|part| Reply::bulk(part.to_string())).collect()))
            }
            ("EXISTS", keys) => {
                let there = keys.iter().filter(|key| self.look(key).is_some()).count();
                keys.iter().for_each(|key| self.is_read(key, by));
                Ok(Reply::Integer(there as i64))
            }
            ("GETRANGE", [key, from, to]) => self.get_range(key, number(from)?, number(to)?, by),
            ("SET", [key, value, options @ ..]) => self.set(key, value, options),
            ("INCRBY", [key, by]) => self.increment(key, number(by)?),
            ("DEL", keys) => {
                let gone = keys.iter().filter(|key| self.remove(key)).count();
                Ok(Reply::Integer(gone as i64))
            }
            ("DELIFEQ", [key, value]) if self.is_newer => {
                let is_equal = match self.look(key).map(|entry| &entry.value) {
                    None => false,
                    Some(Value::Text(text)) => text == value,
                    Some(Value::Sorted(_)) => return Err(WRONG_TYPE.to_owned()),
                };
                Ok(Reply::Integer((is_equal && self.remove(key)).into()))
            }
            ("DELIFEQ", _) if self.is_newer => {
                Err("ERR wrong number of arguments for 'delifeq' command".to_owned())
            }
            ("PTTL", [key]) => Ok(Reply::Integer(self.lasts(key))),
            ("PEXPIRE", [key, ms]) => self.expire(key, number(ms)?),
            ("ZADD", [key, options @ .., score, member]) => self.add(key, options, score, member),
            ("ZRANGE", [key, from, to, with_scores @ ..]) => {
                self.range(key, number(from)?, number(to)?, !with_scores.is_empty())
            }
            ("ZSCORE", [key, member]) => Ok(self
                .sorted(key)?
                .iter()
                .find(|(_, of)| of == member)
                .map_or(Reply::Null, |(score, _)| Reply::bulk(shown(*score)))),
            ("ZCARD", [key]) => Ok(Reply::Integer(self.sorted(key)?.len() as i64)),
            ("ZREM", [key, members @ ..]) => {
                self.retain(key, |_, member| !members.contains(&member))
            }
            ("ZREMRANGEBYSCORE", [key, from, to]) => {
                let (from, to) = (score(from)?, score(to)?);
                self.retain(key, |score, _| !(from..=to).contains(&score))
            }
            ("PUBLISH", [channel, message]) => Ok(Reply::Integer(self.publish(channel, message))),
            ("FLUSHALL", []) => {
                self.lose_everything();
                Ok(Reply::Simple("OK"))
            }
            ("CONFIG", [set, setting, value]) if *set == b"SET" && *setting == b"maxmemory" => {
                self.is_full = *value != b"0";
                Ok(Reply::Simple("OK"))
            }
            _ => Err(format!("ERR unknown command '{name}' with {} arguments", args.len())),
        }
    }

    /// Commands about the connection itself.
    pub(crate) fn run_of_connection(&mut self, words: &Request, by: Peer) -> Option<Reply> {
        let args: Vec<&[u8]> = words[1..].iter().map(Vec::as_slice).collect();
        let peer = self.peers.get_mut(&by)?;
        Some(match (&*name_of(words), &args[..]) {
            ("PING", []) => Reply::Simple("PONG"),
            ("HELLO", _) => Reply::Map(vec![
                ("server", Reply::bulk("redis")),
                ("version", Reply::bulk("7.0.15")),
                ("proto", Reply::Integer(3)),
                ("id", Reply::Integer(by as i64)),
                ("mode", Reply::bulk("standalone")),
                ("role", Reply::bulk("master")),
                ("modules", Reply::Array(Vec::new())),
            ]),
            ("CLIENT", [b"TRACKING", b"ON", b"OPTIN"]) => {
                peer.is_tracking = true;
                Reply::Simple("OK")
            }
            ("CLIENT", [b"CACHING", b"YES"]) if peer.is_tracking => {
                peer.is_caching = true;
                return Some(Reply::Simple("OK"));
            }
            ("SUBSCRIBE", [channel]) => {
                peer.channels.insert(channel.to_vec());
                let count = Reply::Integer(peer.channels.len() as i64);
                Reply::Push(vec![Reply::bulk("subscribe"), Reply::bulk(channel), count])
            }
            _ => return None,
        })
    }

    /// The command after `CLIENT CACHING` has run.
    pub(crate) fn has_run(&mut self, words: &Request, by: Peer) {
        if name_of(words) != "CLIENT"
            && let Some(peer) = self.peers.get_mut(&by)
        {
            peer.is_caching = false;
        }
    }

    pub(crate) fn disconnect(&mut self, peer: Peer) {
        self.peers.remove(&peer);
        self.tracked.retain(|_, peers| {
            peers.remove(&peer);
            !peers.is_empty()
        });
    }

    pub(crate) fn lose_everything(&mut self) {
        self.keys.clear();
        self.notes.push(Note::Lost);
        for peer in
            std::mem::take(&mut self.tracked).into_values().flatten().collect::<BTreeSet<_>>()
        {
            self.invalidate(peer, Reply::Null);
        }
    }

    /// Copies the data, for a later restore.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot(self.keys.clone())
    }

    pub(crate) fn come_back_to(&mut self, snapshot: Snapshot) {
        self.keys = snapshot.0;
        self.notes.push(Note::Lost);
    }

    /// Removes expired keys, as a server does on its own: clients that track a key are notified.
    pub(crate) fn sweep(&mut self) {
        let tracked: Vec<Bytes> = self.tracked.keys().cloned().collect();
        tracked.iter().for_each(|key| _ = self.look(key));
    }

    /// Returns the names of all keys.
    pub(crate) fn names(&mut self) -> Vec<Bytes> {
        let names: Vec<Bytes> = self.keys.keys().cloned().collect();
        names.into_iter().filter(|name| self.look(name).is_some()).collect()
    }

    pub(crate) fn is_tracked(&self) -> bool {
        !self.tracked.is_empty()
    }

    /// How long a key will hold this value from now on, if it does.
    pub(crate) fn stands(&self, key: &[u8], value: &[u8]) -> Option<Duration> {
        self.text(key).filter(|text| *text == value)?;
        self.lasts_for(key).map(Duration::from_millis)
    }

    /// Returns the value of a key, if that is a string.
    pub(crate) fn text(&self, key: &[u8]) -> Option<&[u8]> {
        match &self.peek(key)?.value {
            Value::Text(text) => Some(text),
            Value::Sorted(_) => None,
        }
    }

    /// Returns the members of a sorted set, in order.
    pub(crate) fn members(&self, key: &[u8]) -> &[(f64, Bytes)] {
        match self.peek(key).map(|entry| &entry.value) {
            Some(Value::Sorted(members)) => members,
            _ => &[],
        }
    }

    /// The ms until a key ends.
    pub(crate) fn lasts_for(&self, key: &[u8]) -> Option<u64> {
        Some(self.peek(key)?.expires?.saturating_sub(self.now / 1000))
    }

    /// Returns true if a client listens on this channel.
    pub(crate) fn is_heard(&self, channel: &[u8]) -> bool {
        self.peers.values().any(|peer| peer.channels.contains(channel))
    }

    /// Reads without the effect of a client's read: an expired key stays.
    fn peek(&self, key: &[u8]) -> Option<&Entry> {
        self.keys.get(key).filter(|entry| !entry.is_over(self.now))
    }

    fn look(&mut self, key: &[u8]) -> Option<&mut Entry> {
        if self.keys.get(key)?.is_over(self.now) {
            self.remove_entry(key);
        }
        self.keys.get_mut(key)
    }

    fn remove(&mut self, key: &[u8]) -> bool {
        let was_there = self.look(key).is_some();
        if was_there {
            self.remove_entry(key);
        }
        was_there
    }

    fn remove_entry(&mut self, key: &[u8]) {
        if let Some(Entry { value: Value::Sorted(members), .. }) = self.keys.remove(key) {
            for (_, member) in members {
                self.notes.push(Note::Left { queue: key.to_vec(), member });
            }
        }
        self.changed(key);
    }

    fn changed(&mut self, key: &[u8]) {
        for peer in self.tracked.remove(key).unwrap_or_default() {
            self.invalidate(peer, Reply::Array(vec![Reply::bulk(key)]));
        }
    }

    fn invalidate(&mut self, peer: Peer, keys: Reply) {
        let push = Reply::Push(vec![Reply::bulk("invalidate"), keys]);
        if self.current == Some(peer) {
            push.write_to(&mut self.afterwards);
        } else if let Some(peer) = self.peers.get_mut(&peer) {
            push.write_to(&mut peer.out);
        }
    }

    /// After the read: a key whose end the read itself finds is tracked from then on.
    fn is_read(&mut self, key: &[u8], by: Option<Peer>) {
        let Some(by) = by else { return };
        if self.peers.get(&by).is_some_and(|peer| peer.is_caching) {
            self.tracked.entry(key.to_vec()).or_default().insert(by);
        }
    }

    fn get_range(&mut self, key: &[u8], from: i64, to: i64, by: Option<Peer>) -> Answer {
        self.look(key);
        self.is_read(key, by);
        match self.look(key).map(|entry| &entry.value) {
            None => Ok(Reply::bulk("")),
            Some(Value::Sorted(_)) => Err(WRONG_TYPE.to_owned()),
            Some(Value::Text(text)) => Ok(Reply::bulk(slice(text, from, to))),
        }
    }

    fn set(&mut self, key: &[u8], value: &[u8], options: &[&[u8]]) -> Answer {
        let (mut expires, mut options) = (None, options.iter());
        while let Some(option) = options.next() {
            let is_there = self.look(key).is_some();
            match *option {
                b"NX" if is_there => return Ok(Reply::Null),
                b"XX" if !is_there => return Ok(Reply::Null),
                b"NX" | b"XX" => {}
                b"KEEPTTL" => expires = self.look(key).and_then(|entry| entry.expires),
                b"PX" => {
                    let ms = number(options.next().ok_or("ERR syntax error")?)?;
                    let ms = u64::try_from(ms).ok().filter(|ms| *ms > 0);
                    let ms = ms.ok_or("ERR invalid expire time in 'set' command")?;
                    expires = Some(self.now / 1000 + ms);
                }
                _ => return Err("ERR syntax error".to_owned()),
            }
        }
        let before = self.look(key).map(|entry| &entry.value);
        if !matches!(before, Some(Value::Text(text)) if [text, &b" "[..]].concat() == value) {
            // Otherwise it is marked, and not granted anew.
            self.notes.push(Note::Written { key: key.to_vec(), value: value.to_vec() });
        }
        self.keys.insert(key.to_vec(), Entry { value: Value::Text(value.to_vec()), expires });
        self.changed(key);
        Ok(Reply::Simple("OK"))
    }

    fn increment(&mut self, key: &[u8], by: i64) -> Answer {
        let number = match self.look(key).map(|entry| &entry.value) {
            None => 0,
            Some(Value::Text(text)) => number(text)?,
            Some(Value::Sorted(_)) => return Err(WRONG_TYPE.to_owned()),
        };
        let next = number + by;
        self.set(key, next.to_string().as_bytes(), &[b"KEEPTTL"])?;
        Ok(Reply::Integer(next))
    }

    fn lasts(&mut self, key: &[u8]) -> i64 {
        let now = self.now / 1000;
        match self.look(key) {
            None => -2,
            Some(Entry { expires: None, .. }) => -1,
            Some(Entry { expires: Some(end), .. }) => end.saturating_sub(now) as i64,
        }
    }

    fn expire(&mut self, key: &[u8], ms: i64) -> Answer {
        let now = self.now / 1000;
        let Some(entry) = self.look(key) else { return Ok(Reply::Integer(0)) };
        match u64::try_from(ms).ok().filter(|ms| *ms > 0) {
            Some(ms) => {
                entry.expires = Some(now + ms);
                self.changed(key);
            }
            None => self.remove_entry(key),
        }
        Ok(Reply::Integer(1))
    }

    fn sorted(&mut self, key: &[u8]) -> Result<&[(f64, Bytes)], String> {
        match self.look(key).map(|entry| &entry.value) {
            None => Ok(&[]),
            Some(Value::Sorted(members)) => Ok(members),
            Some(Value::Text(_)) => Err(WRONG_TYPE.to_owned()),
        }
    }

    fn add(&mut self, key: &[u8], options: &[&[u8]], of: &[u8], member: &[u8]) -> Answer {
        let of = score(of)?;
        let mut members = self.sorted(key)?.to_vec();
        let before = members.iter().position(|(_, other)| other == member);
        if options == [b"XX"] && before.is_none() {
            return Ok(Reply::Integer(0));
        }
        if let Some(before) = before {
            if members[before].0 == of {
                return Ok(Reply::Integer(0));
            }
            members.remove(before);
        }
        let (queue, stood) = (key.to_vec(), member.to_vec());
        self.notes.push(Note::Stood { queue, member: stood, arrival: of });
        members.push((of, member.to_vec()));
        members.sort_by(|(a, m), (b, n)| a.total_cmp(b).then_with(|| m.cmp(n)));
        self.put_sorted(key, members);
        Ok(Reply::Integer(before.is_none().into()))
    }

    fn put_sorted(&mut self, key: &[u8], members: Vec<(f64, Bytes)>) {
        let expires = self.look(key).and_then(|entry| entry.expires);
        self.keys.insert(key.to_vec(), Entry { value: Value::Sorted(members), expires });
        self.changed(key);
    }

    fn range(&mut self, key: &[u8], from: i64, to: i64, with_scores: bool) -> Answer {
        let members = slice(self.sorted(key)?, from, to).iter();
        let items = members.flat_map(|(score, member)| {
            [Some(Reply::bulk(member)), with_scores.then(|| Reply::bulk(shown(*score)))]
        });
        Ok(Reply::Array(items.flatten().collect()))
    }

    fn retain(&mut self, key: &[u8], stays: impl Fn(f64, &[u8]) -> bool) -> Answer {
        let members = self.sorted(key)?.to_vec();
        let (stay, gone): (Vec<_>, Vec<_>) =
            members.into_iter().partition(|(score, member)| stays(*score, member));
        let count = gone.len();
        if count > 0 && stay.is_empty() {
            self.remove_entry(key);
        } else if count > 0 {
            for (_, member) in gone {
                self.notes.push(Note::Left { queue: key.to_vec(), member });
            }
            self.put_sorted(key, stay);
        }
        Ok(Reply::Integer(count as i64))
    }

    fn publish(&mut self, channel: &[u8], text: &[u8]) -> i64 {
        let message =
            Reply::Push(vec![Reply::bulk("message"), Reply::bulk(channel), Reply::bulk(text)]);
        let mut heard = 0;
        for peer in self.peers.values_mut().filter(|peer| peer.channels.contains(channel)) {
            message.write_to(&mut peer.out);
            heard += 1;
        }
        self.messages.push(Message { channel: channel.to_vec(), text: text.to_vec(), heard });
        heard
    }
}

impl Entry {
    /// At this time in µs.
    fn is_over(&self, now: u64) -> bool {
        self.expires.is_some_and(|end| now / 1000 > end)
    }
}

/// The data at some moment.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot(BTreeMap<Bytes, Entry>);

/// Returns the name of the command, in capitals.
pub(crate) fn name_of(words: &Request) -> String {
    words.first().map(|name| String::from_utf8_lossy(name).to_uppercase()).unwrap_or_default()
}

/// From one index to another one, both included, where those below zero count from the end.
fn slice<T>(items: &[T], from: i64, to: i64) -> &[T] {
    let len = items.len() as i64;
    let at = |index: i64| if index < 0 { (len + index).max(0) } else { index.min(len) } as usize;
    let end = if to < 0 { len + to + 1 } else { (to + 1).min(len) };
    items.get(at(from)..end.max(0) as usize).unwrap_or(&[])
}

fn number(word: &[u8]) -> Result<i64, String> {
    let number = std::str::from_utf8(word).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| NOT_AN_INTEGER.to_owned())
}

fn score(word: &[u8]) -> Result<f64, String> {
    let score = std::str::from_utf8(word).ok().and_then(|text| text.parse().ok());
    score.ok_or_else(|| "ERR value is not a valid float".to_owned())
}

fn shown(score: f64) -> String {
    score.to_string()
}
