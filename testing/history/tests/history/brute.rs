//! Small histories of one lock, legal or not, and a checker for them that tries every order. It
//! knows only the model: a lock with an owner, its highest token, and leases.

use std::time::Duration;

use lock_history::{Grade, Header, Kind, Line, Op, Record, Renewals, Why};

use crate::model::{self, Dice, Play};

const FOR_EVER: u64 = u64::MAX / 4;

/// The effect of one call on the lock, or its observation.
#[derive(Clone, Copy, Debug)]
enum Effect {
    Take { grant: usize, fence: Option<u64> },
    End { grant: usize },
    EndIfHeld { grant: usize },
    SomebodyHas,
    HasNot { grant: usize },
}

/// An effect at one point of `from..=until`, perhaps without any.
#[derive(Clone, Copy, Debug)]
struct Item {
    effect: Effect,
    from: u64,
    until: u64,
    must: bool,
}

/// A history, and the data that the checker needs.
#[derive(Debug, Default)]
pub(crate) struct Small {
    pub(crate) lines: Vec<Line>,
    items: Vec<Item>,
    /// For each grant, the latest time of its end.
    gone_by: Vec<u64>,
    /// The intervals in which calls are queued, with their numbers.
    in_line: Vec<(usize, u64, u64)>,
    /// Calls that met contention: number, begin, end.
    busy: Vec<(usize, u64, u64)>,
    pub(crate) has_unknown: bool,
}

impl Small {
    /// Draws a history of some calls, each of its own client, at random points in time.
    pub(crate) fn draw(seed: u64, fenced: bool) -> Self {
        let mut dice = Dice(seed);
        let mut small = Self::default();
        let lease = 4 + dice.roll(40);
        let horizon = 12 + dice.roll(40);
        let mut free: Vec<u64> = (1..=2 * horizon).collect();
        let calls = 1 + dice.roll(5) as usize;
        for number in 0..calls {
            small.call(&mut dice, number, &mut free, lease, fenced);
        }
        small.lines.sort_by_key(Line::t);
        let nanos = Duration::from_nanos;
        let play = Play { seed, clients: 0, locks: 1, calls: 0, fenced, rough: false };
        let header = Header {
            fencing: if fenced { Grade::Seeded } else { Grade::None },
            fifo_after: None,
            lease: Some(nanos(lease)),
            margin: nanos(0),
            takeover: nanos(0),
            drain: nanos(FOR_EVER),
            renewals: Renewals::Background,
            ..model::header(&play)
        };
        small.lines.insert(0, Line::Header(header));
        small
    }

    fn call(&mut self, d: &mut Dice, n: usize, free: &mut Vec<u64>, lease: u64, fenced: bool) {
        let wanted = 2 + 2 * usize::from(d.roll(4) > 0);
        if free.len() < 8 {
            return;
        }
        // Mostly short: times that are near to each other.
        let first = d.roll(free.len() as u64 - 4) as usize;
        let mut times: Vec<u64> = Vec::new();
        let mut at = first;
        while times.len() < wanted && at < free.len() {
            times.push(free.remove(at));
            at += d.roll(3) as usize * d.roll(3) as usize;
        }
        if times.len() < 2 {
            return;
        }
        let (invoke, ret) = (times[0], times[1]);
        let op = if d.roll(2) == 0 { Op::Acquire } else { Op::Try };
        let mut record = record(n, op);
        self.push(&record, Kind::Invoke, invoke);
        match d.roll(8) {
            0 => {
                self.has_unknown = true;
                record.err = Some(Why::Dropped);
                self.push(&record, Kind::Info, ret);
                let gone_by = ret + lease;
                let grant = self.grant(gone_by);
                self.item(Effect::Take { grant, fence: None }, invoke, gone_by, false);
                self.item(Effect::End { grant }, invoke, gone_by, false);
                self.wait(op, n, invoke, gone_by);
            }
            1 | 2 => {
                record.err = Some(Why::Busy);
                self.push(&record, Kind::Fail, ret);
                self.wait(op, n, invoke, ret);
                self.busy.push((n, invoke, ret));
            }
            _ => {
                // Mostly in the order of the answers.
                let fence = fenced.then(|| if d.roll(12) == 0 { 1 + d.roll(40) } else { ret });
                let valid_until = invoke + d.roll(lease + 1);
                (record.fence, record.valid_until) = (fence, Some(valid_until));
                self.push(&record, Kind::Ok, ret);
                self.wait(op, n, invoke, ret);
                let grant = self.grant(FOR_EVER);
                self.item(Effect::Take { grant, fence }, invoke, ret, true);
                let mut release = None;
                if let [_, _, called, answered] = times[..] {
                    release = Some(self.release(d, n, grant, called, answered));
                    if matches!(release, Some(Kind::Info)) {
                        self.gone_by[grant] = answered + lease;
                    }
                }
                // Times of calls are odd, those of leases even: they end before simultaneous calls.
                if release != Some(Kind::Ok) {
                    let item = Item {
                        effect: Effect::End { grant },
                        from: 2 * valid_until,
                        until: 2 * self.gone_by[grant] + 1,
                        must: false,
                    };
                    self.items.push(item);
                }
            }
        }
    }

    fn release(
        &mut self,
        d: &mut Dice,
        n: usize,
        grant: usize,
        called: u64,
        answered: u64,
    ) -> Kind {
        let mut record = record(n, Op::Release);
        self.push(&record, Kind::Invoke, called);
        let (kind, effect, must) = match d.roll(8) {
            0 => (Kind::Info, Effect::End { grant }, false),
            1 => (Kind::Info, Effect::EndIfHeld { grant }, true),
            2 => (Kind::Fail, Effect::HasNot { grant }, true),
            _ => (Kind::Ok, Effect::End { grant }, true),
        };
        record.err = match effect {
            Effect::EndIfHeld { .. } => Some(Why::Gone),
            Effect::HasNot { .. } => Some(Why::NotHeld),
            _ => (kind == Kind::Info).then_some(Why::Dropped),
        };
        self.push(&record, kind, answered);
        self.item(effect, called, if must { answered } else { FOR_EVER }, must);
        kind
    }

    fn grant(&mut self, gone_by: u64) -> usize {
        self.gone_by.push(gone_by);
        self.gone_by.len() - 1
    }

    fn wait(&mut self, op: Op, n: usize, from: u64, until: u64) {
        if op == Op::Acquire {
            self.in_line.push((n, from, until));
        }
    }

    fn item(&mut self, effect: Effect, from: u64, until: u64, must: bool) {
        self.items.push(Item { effect, from: 2 * from + 1, until: 2 * until + 1, must });
    }

    fn push(&mut self, record: &Record, kind: Kind, t: u64) {
        let record = Record { kind, t, ..record.clone() };
        self.lines.push(Line::Record(record));
    }

    /// Returns whether there is any order that the model allows.
    pub(crate) fn is_legal(&self) -> bool {
        let mut items = self.items.clone();
        for &(n, from, until) in &self.busy {
            let stands =
                |other: &&(usize, u64, u64)| other.0 != n && other.1 <= until && other.2 >= from;
            if self.in_line.iter().find(stands).is_none() {
                let effect = Effect::SomebodyHas;
                items.push(Item { effect, from: 2 * from + 1, until: 2 * until + 1, must: true });
            }
        }
        self.try_all(&items, &mut vec![false; items.len()], 0, None, None)
    }

    fn try_all(
        &self,
        items: &[Item],
        placed: &mut Vec<bool>,
        now: u64,
        owner: Option<usize>,
        top: Option<u64>,
    ) -> bool {
        let missing = |n: usize| items[n].must && !placed[n];
        if !(0..items.len()).any(missing) {
            // An overdue grant can end: its end is one more item, which no other needs.
            return true;
        }
        if (0..items.len()).any(|n| missing(n) && items[n].until < now) {
            return false;
        }
        for n in 0..items.len() {
            let at = now.max(items[n].from);
            if placed[n] || at > items[n].until {
                continue;
            }
            // A grant that must have ended by now has to end before.
            let overdue = owner.is_some_and(|grant| 2 * self.gone_by[grant] + 1 < at);
            if overdue {
                continue;
            }
            let after = match items[n].effect {
                Effect::Take { grant, fence } => {
                    let grows = fence.is_none() || top.is_none() || fence > top;
                    (owner.is_none() && grows).then_some((Some(grant), fence.or(top)))
                }
                Effect::End { grant } => (owner == Some(grant)).then_some((None, top)),
                Effect::EndIfHeld { grant } => Some((owner.filter(|&other| other != grant), top)),
                Effect::SomebodyHas => owner.is_some().then_some((owner, top)),
                Effect::HasNot { grant } => (owner != Some(grant)).then_some((owner, top)),
            };
            let Some((owner, top)) = after else { continue };
            placed[n] = true;
            if self.try_all(items, placed, at, owner, top) {
                return true;
            }
            placed[n] = false;
        }
        false
    }
}

fn record(n: usize, op: Op) -> Record {
    let record = Record::new(Kind::Invoke, op, &format!("p{n}"), "lock 0");
    Record { grant: Some(format!("g{n}")), ..record }
}
