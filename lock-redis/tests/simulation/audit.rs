//! What has to be so at the server when one of our scripts has run: what the documentation of the crate promises of
//! the line. Clients may get over a script that breaks it, by looking a lease later; here it shows at once.

use std::collections::BTreeMap;

use super::keyspace::{Bytes, Keyspace};
use super::order::shown;

/// What is known of the locks from one script to the next.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// Of each lock: whom it was sent last, if nothing was heard of its process since.
    silent: BTreeMap<Bytes, Sent>,
}

#[derive(Clone, Debug)]
struct Sent {
    owner: Bytes,
    channel: Bytes,
}

/// A message to whoever listens at a channel, and how many do.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) channel: Bytes,
    pub(crate) text: Bytes,
    pub(crate) heard: i64,
}

/// What a script is asked for, before it runs.
pub(crate) struct Asked<'a> {
    locks: Vec<OfLock>,
    args: &'a [Bytes],
}

struct OfLock {
    lock: Bytes,
    queue: Bytes,
    places: Bytes,
    /// What it held, and for how many ms more.
    held: Option<(Bytes, Option<u64>)>,
}

impl<'a> Asked<'a> {
    pub(crate) fn before(data: &Keyspace, keys: &[Bytes], args: &'a [Bytes]) -> Self {
        // A lock, its fence, its line, its places, and one more; a renewal names five of each lock, others a sixth.
        let locks = keys.chunks_exact(5).map(|of| OfLock {
            lock: of[0].clone(),
            queue: of[2].clone(),
            places: of[3].clone(),
            held: data.text(&of[0]).map(|value| (value.to_vec(), data.lasts_for(&of[0]))),
        });
        Self { locks: locks.collect(), args }
    }
}

impl Audit {
    /// What is wrong now that the script has run, and has sent that.
    pub(crate) fn after(&mut self, keys: &Keyspace, it: &Asked, sent: &[Message]) -> Vec<String> {
        let mut wrong = Vec::new();
        for of in &it.locks {
            wrong.extend(is_prolonged(keys, of, it.args));
            let owner = keys.text(&of.lock).map(|value| value.get(..32).unwrap_or_default());
            let mut line = keys.members(&of.queue).iter().map(|(_, member)| member);
            wrong.extend(match owner {
                None if of.held.is_some() => line
                    .find(|member| is_there(keys, &of.places, member))
                    .map(|member| format!("the lock was let go, and {} not served", shown(member))),
                Some(owner) if owner.len() == 32 => line
                    .find(|member| member.starts_with(owner))
                    .map(|member| format!("{} holds the lock, and stands in line", shown(member))),
                _ => None,
            });
            let speaks =
                |sent: &Sent| it.args.contains(&sent.owner) || it.args.contains(&sent.channel);
            if self.silent.get(&of.lock).is_some_and(speaks) {
                self.silent.remove(&of.lock);
            }
        }
        wrong.extend(sent.iter().filter_map(|message| self.sends(keys, &it.locks, message)));
        wrong
    }

    /// What is wrong with a message, if it says that one of these locks was given to somebody.
    fn sends(&mut self, keys: &Keyspace, locks: &[OfLock], message: &Message) -> Option<String> {
        let text = String::from_utf8_lossy(&message.text).into_owned();
        let ["grant", owner, number, lease, now] = text.split(' ').collect::<Vec<_>>()[..] else {
            return None;
        };
        let name = shown(owner.as_bytes());
        let holds = format!("{owner} {number}");
        let value_of = |of: &OfLock| keys.text(&of.lock).unwrap_or_default();
        let given = locks.iter().find(|of| value_of(of).starts_with(owner.as_bytes()));
        let Some(of) = given else {
            // It was taken back, since nobody has heard it.
            return (message.heard > 0).then(|| format!("{name} was sent a lock that it has not"));
        };
        let lasts = keys.lasts_for(&of.lock).unwrap_or_default();
        let is_true = value_of(of).starts_with(holds.as_bytes())
            && lease == lasts.to_string()
            && now == keys.now.to_string();
        let channel = message.channel.clone();
        let sent = Sent { owner: owner.as_bytes().to_vec(), channel: channel.clone() };
        let before = self.silent.insert(of.lock.clone(), sent);
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

/// A lease lasts longer than before, and not its owner has asked for that.
fn is_prolonged(keys: &Keyspace, of: &OfLock, args: &[Bytes]) -> Option<String> {
    let value = keys.text(&of.lock)?;
    let owner = value.get(..32)?;
    let (before, lasted) = of.held.as_ref()?;
    let lasts_longer = before == value && keys.lasts_for(&of.lock) > *lasted;
    (lasts_longer && !args.iter().any(|arg| arg == owner))
        .then(|| format!("the lease of {} was prolonged by others", shown(owner)))
}

/// Its process listens, and its places last.
fn is_there(keys: &Keyspace, places: &[u8], member: &[u8]) -> bool {
    let channel = member.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    until(keys, places, channel).is_some_and(|until| until > keys.now) && keys.is_heard(channel)
}

/// When the places of a process lapse.
fn until(keys: &Keyspace, places: &[u8], channel: &[u8]) -> Option<u64> {
    let mut places = keys.members(places).iter();
    places.find(|(_, of)| of == channel).map(|(until, _)| *until as u64)
}
