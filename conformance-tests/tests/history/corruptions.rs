//! Histories that campaigns have recorded on real servers, each with one thing wrong at a time: every corruption has to
//! be seen wherever it is put.

use std::time::Duration;

use conformance_tests::history::{Assumption, History, Kind, Line, Op, Rule, check};

use super::{Hold, MS, call, holds, record, record_mut, released, sort, t};

/// A few locks of a run each, with all that broke them, by the backend.
const RECORDED: [(&str, &str); 6] = [
    ("memory", include_str!("recorded/memory.jsonl")),
    ("file", include_str!("recorded/file.jsonl")),
    ("redis", include_str!("recorded/redis.jsonl")),
    ("memcache", include_str!("recorded/memcache.jsonl")),
    ("zookeeper", include_str!("recorded/zookeeper.jsonl")),
    ("quorum", include_str!("recorded/quorum.jsonl")),
];

/// So many places at least for each corruption, and no more than the second number.
const PLACES: std::ops::RangeInclusive<usize> = 5..=12;

/// A history with all of its places for a corruption, each a history of its own.
type Corruption = fn(&Recorded) -> Vec<Vec<Line>>;

/// The rules of which one has to see it, and the backends that cannot have it.
const CORRUPTIONS: &[(&str, Corruption, &[Rule], &[&str])] = &[
    ("a second holder", second_holder, &[Rule::K1], &[]),
    ("a second holder after the first lease", second_after_lease, &[Rule::K1], &["file"]),
    ("an overlap of a microsecond", overlaps_shortly, &[Rule::K1], &[]),
    ("a token with another low byte", low_byte, &[Rule::K4], &[]),
    ("a token twice", token_twice, &[Rule::K4], &[]),
    ("a write with a token that was never given", strange_write, &[Rule::K3], &[]),
    ("a deadline ten seconds too far", deadline_too_far, &[Rule::K1], &["file"]),
    ("a deadline that goes back", deadline_back, &[Rule::K1], &["file"]),
    ("a release twice", released_twice, &[Rule::K7], &[]),
    ("a verification beside the next holder", verified_beside, &[Rule::K7], &[]),
    ("the same after a removal", verified_after_removal, &[Rule::K7], &[]),
];

struct Recorded {
    lines: Vec<Line>,
    holds: Vec<Hold>,
}

#[test]
fn recorded_histories_are_legal() {
    for (name, text) in RECORDED {
        let report = check(&History::read(text.as_bytes()).unwrap());
        assert!(report.is_legal(), "{name}: {report}");
    }
}

#[test]
fn corruptions_of_recorded_histories_are_seen_in_all_places() {
    let mut missed = Vec::new();
    for (backend, text) in RECORDED {
        let lines = text.lines().map(|line| Line::parse(line.as_bytes()).unwrap());
        let lines: Vec<Line> = lines.collect();
        let recorded = Recorded { holds: holds(&lines), lines };
        for (name, corruption, rules, cannot) in CORRUPTIONS {
            if cannot.contains(&backend) {
                continue;
            }
            let places = spread(corruption(&recorded));
            let seen = places.iter().filter(|lines| {
                let mut lines = lines.to_vec();
                sort(&mut lines);
                let report = check(&History::new(lines).unwrap());
                rules.iter().any(|rule| report.broken.contains_key(rule))
            });
            let (seen, all) = (seen.count(), places.len());
            if seen < all || !PLACES.contains(&all) {
                missed.push(format!("{backend}: {name}: seen in {seen} of {all} places"));
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// As many as are judged, from all over the history.
fn spread(places: Vec<Vec<Line>>) -> Vec<Vec<Line>> {
    let step = places.len().div_ceil(*PLACES.end()).max(1);
    places.into_iter().step_by(step).collect()
}

impl Recorded {
    /// Holds that were given back, for longer than a moment, of locks that nothing was done to by force meanwhile.
    fn sound(&self) -> impl Iterator<Item = (&Hold, usize, usize)> {
        let ended = self.holds.iter().filter_map(|hold| {
            let (invoke, ok) = released(hold)?;
            let is_long = t(&self.lines, invoke) > t(&self.lines, hold.ok) + 2 * MS;
            (is_long && hold.lost.is_none()).then_some((hold, invoke, ok))
        });
        ended.filter(|(hold, _, ok)| !self.is_broken(&hold.lock, hold.invoke, *ok))
    }

    fn is_broken(&self, lock: &str, from: usize, until: usize) -> bool {
        let (from, until) = (t(&self.lines, from), t(&self.lines, until));
        let heals = |id: u64| {
            let heal = |line: &Line| matches!(line, Line::Heal(heal) if heal.id == id);
            self.lines.iter().find(|line| heal(line)).and_then(Line::t).unwrap_or(u64::MAX)
        };
        self.lines.iter().any(|line| {
            let Line::Fault(fault) = line else { return false };
            let is_about =
                fault.locks.as_ref().is_none_or(|all| all.iter().any(|one| *one == *lock));
            is_about && !fault.breaks.is_empty() && fault.t <= until && heals(fault.id) >= from
        })
    }

    /// A token that no holder of a lock has.
    fn new_token(&self, lock: &str) -> Option<u64> {
        let of_lock = self.holds.iter().filter(|hold| hold.lock == lock);
        Some((of_lock.filter_map(|hold| hold.fence).max()? & !0xff) + 256)
    }

    fn edit(&self, edit: impl FnOnce(&mut Vec<Line>)) -> Vec<Line> {
        let mut lines = self.lines.clone();
        edit(&mut lines);
        lines
    }

    /// Another client has the lock for a moment from `at` on.
    fn granted_too(&self, hold: &Hold, at: u64) -> Vec<Line> {
        self.edit(|lines| {
            let answer = call(lines, hold.ok, at, at + 1, Op::Try, Kind::Ok);
            let given = record_mut(&mut lines[answer]);
            given.fence = self.new_token(&hold.lock);
            given.valid_until = record(&self.lines[hold.ok]).unwrap().valid_until.map(|_| at + MS);
        })
    }

    /// Holds with the one that came next, which waited for it.
    fn followed(&self) -> impl Iterator<Item = (&Hold, usize, usize, &Hold)> {
        self.sound().filter_map(|(hold, invoke, ok)| {
            let mut later = self.holds.iter().filter(|next| next.lock == hold.lock);
            let next = later.find(|next| next.fence > hold.fence)?;
            let is_next = t(&self.lines, next.invoke) < t(&self.lines, invoke);
            is_next.then_some((hold, invoke, ok, next))
        })
    }
}

fn second_holder(of: &Recorded) -> Vec<Vec<Line>> {
    let middle = |from: usize, until: usize| t(&of.lines, from).midpoint(t(&of.lines, until));
    of.sound().map(|(hold, invoke, _)| of.granted_too(hold, middle(hold.ok, invoke))).collect()
}

fn second_after_lease(of: &Recorded) -> Vec<Vec<Line>> {
    let first = |hold: &Hold| record(&of.lines[hold.ok]).unwrap().valid_until.unwrap();
    let long = of.sound().filter(|(hold, invoke, _)| first(hold) + 8 * MS < t(&of.lines, *invoke));
    let places = long.flat_map(|(hold, invoke, _)| {
        let (from, until) = (first(hold) + MS, t(&of.lines, invoke) - MS);
        (0..6).map(move |nth| (hold, from + (until - from) / 6 * nth))
    });
    places.map(|(hold, at)| of.granted_too(hold, at)).collect()
}

/// The next one says that it got the lock just before the one before it gave it back.
fn overlaps_shortly(of: &Recorded) -> Vec<Vec<Line>> {
    let places = of.followed().map(|(_, invoke, _, next)| {
        of.edit(|lines| {
            let at = t(lines, invoke) - 1000;
            record_mut(&mut lines[next.ok]).t = at;
        })
    });
    places.collect()
}

fn low_byte(of: &Recorded) -> Vec<Vec<Line>> {
    let edit = |hold: &Hold| {
        of.edit(|lines| {
            let record = record_mut(&mut lines[hold.ok]);
            record.fence = record.fence.map(|fence| fence ^ 3);
        })
    };
    of.holds.iter().map(edit).collect()
}

fn token_twice(of: &Recorded) -> Vec<Vec<Line>> {
    let edit = |hold: &Hold, next: &Hold| {
        of.edit(|lines| record_mut(&mut lines[next.ok]).fence = hold.fence)
    };
    of.followed().map(|(hold, _, _, next)| edit(hold, next)).collect()
}

fn strange_write(of: &Recorded) -> Vec<Vec<Line>> {
    let shown = of.lines.iter().enumerate().filter(|(_, line)| {
        record(line).is_some_and(|r| {
            matches!(r.op, Op::Write | Op::Read) && r.kind == Kind::Invoke && r.fence.is_some()
        })
    });
    let edit = |(index, line): (usize, &Line)| {
        let token = of.new_token(&record(line).unwrap().lock);
        of.edit(|lines| record_mut(&mut lines[index]).fence = token)
    };
    shown.map(edit).collect()
}

/// Each line that tells a deadline, with the one that was told of the same grant before.
fn deadlines(of: &Recorded) -> Vec<(usize, Option<u64>)> {
    let mut told = std::collections::HashMap::new();
    let all = of.lines.iter().enumerate().filter_map(|(index, line)| {
        let record = record(line)?;
        let until = record.valid_until.filter(|&until| until > 0)?;
        Some((index, told.insert(record.grant.clone()?, until)))
    });
    all.collect()
}

fn deadline_too_far(of: &Recorded) -> Vec<Vec<Line>> {
    let edit = |(index, _): (usize, _)| {
        of.edit(|lines| {
            let record = record_mut(&mut lines[index]);
            record.valid_until = record.valid_until.map(|until| until + 10_000 * MS);
        })
    };
    deadlines(of).into_iter().map(edit).collect()
}

fn deadline_back(of: &Recorded) -> Vec<Vec<Line>> {
    let Some(Line::Header(header)) = of.lines.first() else { panic!("a header comes first") };
    let by = u64::try_from((header.margin + Duration::from_millis(1)).as_nanos()).unwrap();
    let edit = |(index, before): (usize, Option<u64>)| {
        let until = before? - by;
        Some(of.edit(|lines| record_mut(&mut lines[index]).valid_until = Some(until)))
    };
    deadlines(of).into_iter().filter_map(edit).collect()
}

fn released_twice(of: &Recorded) -> Vec<Vec<Line>> {
    let places = of.sound().map(|(_, invoke, ok)| {
        of.edit(|lines| {
            let at = t(lines, ok);
            call(lines, invoke, at + 1, at + 2, Op::Release, Kind::Ok);
        })
    });
    places.collect()
}

/// The holder does not give the lock back, and is told that it has it when the next one has it.
fn verified_beside(of: &Recorded) -> Vec<Vec<Line>> {
    let places = of.followed().map(|(_, invoke, ok, next)| {
        of.edit(|lines| {
            let at = t(lines, next.ok);
            call(lines, invoke, at + 1, at + 2, Op::Renew, Kind::Ok);
            let mut index = 0;
            lines.retain(|_| {
                index += 1;
                ![invoke, ok].contains(&(index - 1))
            });
        })
    });
    places.collect()
}

/// The same, where the lock was taken from it by force.
fn verified_after_removal(of: &Recorded) -> Vec<Vec<Line>> {
    let places = verified_beside(of).into_iter().map(|mut lines| {
        let verified = record(lines.last().unwrap()).unwrap().clone();
        let next = lines.iter().filter_map(record).filter(|r| {
            r.kind == Kind::Ok && r.op.acquires() && r.lock == verified.lock && r.t < verified.t
        });
        let granted = next.map(|r| r.t).max().unwrap();
        let removal = format!(
            r#"{{"kind":"fault","t":{},"id":999999,"what":"broken","lock":"{}","breaks":["A3"]}}"#,
            granted - 1000,
            verified.lock
        );
        let over = format!(r#"{{"kind":"heal","t":{},"id":999999}}"#, granted - 500);
        for line in [removal, over] {
            lines.push(Line::parse(line.as_bytes()).unwrap());
        }
        if let Line::Header(header) = &mut lines[0]
            && !header.breaks.contains(&Assumption::A3)
        {
            header.breaks.push(Assumption::A3);
        }
        lines
    });
    places.collect()
}
