//! Histories that campaigns have recorded on real servers, each with one defect at a time: every
//! corruption has to be found at every place.

use std::time::Duration;

use lock_history::{Assumption, Fault, Header, History, Kind, Line, Op, Rule, Why, check};

use super::{Hold, MS, call, fault_ending, holds, record, record_mut, released, sort, t};

/// A few locks of a run for each backend, with all faults that affected them.
const RECORDED: [(&str, &str); 6] = [
    ("memory", include_str!("recorded/memory.jsonl")),
    ("file", include_str!("recorded/file.jsonl")),
    ("redis", include_str!("recorded/redis.jsonl")),
    ("memcache", include_str!("recorded/memcache.jsonl")),
    ("zookeeper", include_str!("recorded/zookeeper.jsonl")),
    ("quorum", include_str!("recorded/quorum.jsonl")),
];

/// The least number of places for each corruption, and the largest that is tested.
const PLACES: std::ops::RangeInclusive<usize> = 5..=12;

/// Returns a history for each place of a corruption.
type Corruption = fn(&Recorded) -> Vec<Vec<Line>>;

/// The corruptions, each with the rules of which one has to find it, and the backends without a
/// place for it.
const CORRUPTIONS: &[(&str, Corruption, &[Rule], &[&str])] = &[
    ("a second holder", second_holder, &[Rule::K1], &[]),
    ("a second holder after the first lease", second_after_lease, &[Rule::K1], &["file"]),
    ("an overlap of a microsecond", overlaps_shortly, &[Rule::K1], &[]),
    ("a token with another low byte", low_byte, &[Rule::K4], &[]),
    ("a token twice", token_twice, &[Rule::K4], &[]),
    ("a write with a token that was never given", strange_write, &[Rule::K3], &[]),
    ("a deadline ten seconds too far", deadline_too_far, &[Rule::K1], &["file"]),
    ("a deadline that goes back", deadline_back, &[Rule::K1], &["file", "zookeeper"]),
    ("a release twice", released_twice, &[Rule::K7], &[]),
    ("a verification beside the next holder", verified_beside, &[Rule::K7], &[]),
    ("the same after a removal", verified_after_removal, &[Rule::K7], &[]),
    ("a release after a removal", released_after_removal, &[Rule::K7], &[]),
    ("a verification after a removal", renewed_after_removal, &[Rule::K7], &[]),
    ("a hand-off that is late", late_hand_off, &[Rule::K5], &[]),
    ("one error in a hundred", one_error_in_a_hundred, &[Rule::Unexplained], &[]),
    (
        "a waiter that starves after a fault",
        starved_after_fault,
        &[Rule::Fifo],
        &["file", "memcache", "quorum"],
    ),
];

/// The delay of a late hand-off, in seconds over three or in leases.
const LATE: u64 = 4;

/// The number of undisturbed calls and holds in a run of the default length.
const UNDISTURBED: u64 = 600;

struct Recorded {
    lines: Vec<Line>,
    holds: Vec<Hold>,
}

#[test]
fn recorded_histories_are_legal() {
    for (name, text) in RECORDED {
        let report = check(&History::new(recorded(name, text)).unwrap());
        assert!(report.is_legal(), "{name}: {report}");
    }
}

#[test]
fn corruptions_of_recorded_histories_are_seen_in_all_places() {
    let mut missed = Vec::new();
    for (backend, text) in RECORDED {
        let lines = recorded(backend, text);
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
                rules.iter().any(|rule| report.breaks(*rule))
            });
            let (seen, all) = (seen.count(), places.len());
            if seen < all || !PLACES.contains(&all) {
                missed.push(format!("{backend}: {name}: seen in {seen} of {all} places"));
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// Returns the lines of a history, with the promises that a campaign records today: the deadlines
/// of a session may move back.
fn recorded(backend: &str, text: &str) -> Vec<Line> {
    let lines = text.lines().map(|line| Line::parse(line.as_bytes()).unwrap());
    let mut lines: Vec<Line> = lines.collect();
    let Some(Line::Header(header)) = lines.first_mut() else { panic!("a header comes first") };
    header.moves_back = backend == "zookeeper";
    lines
}

/// Returns the places that are judged, from all over the history.
fn spread(places: Vec<Vec<Line>>) -> Vec<Vec<Line>> {
    let step = places.len().div_ceil(*PLACES.end()).max(1);
    places.into_iter().step_by(step).collect()
}

impl Recorded {
    /// Returns the holds that lasted for longer than a moment.
    fn sound(&self) -> impl Iterator<Item = (&Hold, usize, usize)> {
        let is_long =
            |hold: &Hold, invoke| t(&self.lines, invoke) > t(&self.lines, hold.ok) + 2 * MS;
        self.ended().filter(move |(hold, invoke, _)| is_long(hold, *invoke))
    }

    /// Returns the released holds of locks that no operator removed meanwhile.
    fn ended(&self) -> impl Iterator<Item = (&Hold, usize, usize)> {
        let ended = self.holds.iter().filter(|hold| hold.lost.is_none());
        let ended = ended.filter_map(|hold| released(hold).map(|(invoke, ok)| (hold, invoke, ok)));
        ended.filter(|(hold, _, ok)| !self.is_broken(&hold.lock, hold.invoke, *ok))
    }

    fn is_broken(&self, lock: &str, from: usize, until: usize) -> bool {
        let (from, until) = (t(&self.lines, from), t(&self.lines, until));
        self.lines.iter().any(|line| {
            let Line::Fault(fault) = line else { return false };
            let is_meanwhile = fault.t <= until && self.heals(fault.id) >= from;
            is_about(fault, lock) && !fault.breaks.is_empty() && is_meanwhile
        })
    }

    /// Returns a token that no holder of a lock has.
    fn new_token(&self, lock: &str) -> Option<u64> {
        let of_lock = self.holds.iter().filter(|hold| hold.lock == lock);
        Some((of_lock.filter_map(|hold| hold.fence).max()? & !0xff) + 256)
    }

    fn edit(&self, edit: impl FnOnce(&mut Vec<Line>)) -> Vec<Line> {
        let mut lines = self.lines.clone();
        edit(&mut lines);
        lines
    }

    fn header(&self) -> &Header {
        let Some(Line::Header(header)) = self.lines.first() else { panic!("a header comes first") };
        header
    }

    /// Returns the times of faults of this process, or of all of them, that its client may have
    /// noticed.
    fn faults(&self, process: Option<&str>, lock: &str) -> impl Iterator<Item = (u64, u64)> {
        let is_felt = move |fault: &Fault| {
            let host = fault.process.as_deref();
            !fault.hidden && (host.is_none() || host == process) && is_about(fault, lock)
        };
        self.lines.iter().filter_map(move |line| {
            let Line::Fault(fault) = line else { return None };
            is_felt(fault).then(|| (fault.t, self.heals(fault.id)))
        })
    }

    fn heals(&self, id: u64) -> u64 {
        let heal = |line: &&Line| matches!(line, Line::Heal(heal) if heal.id == id);
        self.lines.iter().find(heal).and_then(Line::t).unwrap_or(u64::MAX)
    }

    fn feels(&self, hold: &Hold, since: u64, at: u64) -> bool {
        let process = &record(&self.lines[hold.ok]).unwrap().process;
        let host = process.split('/').next();
        self.faults(host, &hold.lock).any(|(from, until)| from <= at && until >= since)
    }

    /// Repeats the history, with other clients each time, up to the default length of a run.
    fn repeated(&self) -> Self {
        let rounds = UNDISTURBED.div_ceil(undisturbed(&self.lines).max(1)).max(10);
        let mut lines = vec![self.lines[0].clone()];
        let times = self.lines.iter().filter_map(Line::t);
        let (first, last) = (times.clone().min().unwrap(), times.max().unwrap());
        let header = self.header();
        let rest = header.recovers.unwrap() + header.lease.unwrap_or_default();
        let length = last - first + u64::try_from(rest.as_nanos()).unwrap();
        let fences = self.holds.iter().filter_map(|hold| hold.fence);
        let fences = fences.clone().max().unwrap() - fences.min().unwrap();
        // One failure without a reason is legal in one round, and too many in all rounds.
        let failed = self.lines.iter().filter_map(record);
        let failed = failed.filter(|r| r.op.acquires() && matches!(r.err, Some(Why::Other(_))));
        let failed: Vec<_> = failed.map(|r| r.grant.clone()).collect();
        for round in 0..rounds {
            for line in &self.lines[1..] {
                let mut line = line.clone();
                shift(&mut line, length * round);
                match &mut line {
                    Line::Record(r) if matches!(r.op, Op::Read | Op::Write) => continue,
                    Line::Record(r) if r.grant.is_some() && failed.contains(&r.grant) => continue,
                    Line::Residue(_) if round + 1 < rounds => continue,
                    Line::Record(r) => {
                        r.process = format!("r{round}{}", r.process);
                        r.grant = r.grant.take().map(|grant| format!("r{round}{grant}"));
                        r.fence = r.fence.map(|fence| fence + ((fences | 0xff) + 1) * round);
                    }
                    Line::Fault(fault) => {
                        fault.id += 1_000_000 * round;
                        fault.process = fault.process.take().map(|host| format!("r{round}{host}"));
                    }
                    Line::Heal(heal) => heal.id += 1_000_000 * round,
                    _ => {}
                }
                lines.push(line);
            }
        }
        Self { holds: holds(&lines), lines }
    }

    /// Grants the lock to another client for a moment from `at` on.
    fn granted_too(&self, hold: &Hold, at: u64) -> Vec<Line> {
        self.edit(|lines| {
            let answer = call(lines, hold.ok, at, at + 1, Op::Try, Kind::Ok);
            let given = record_mut(&mut lines[answer]);
            given.fence = self.new_token(&hold.lock);
            given.valid_until = record(&self.lines[hold.ok]).unwrap().valid_until.map(|_| at + MS);
        })
    }

    /// Returns each hold with the next one, which waited for it.
    fn followed(&self) -> impl Iterator<Item = (&Hold, usize, usize, &Hold)> {
        self.with_next(self.sound())
    }

    fn with_next<'a>(
        &'a self,
        holds: impl Iterator<Item = (&'a Hold, usize, usize)>,
    ) -> impl Iterator<Item = (&'a Hold, usize, usize, &'a Hold)> {
        holds.filter_map(|(hold, invoke, ok)| {
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

/// Moves the answer of the next acquisition shortly before the release of the previous hold.
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

/// Returns each line with a deadline, and the previous deadline of the same grant.
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
    let by = u64::try_from((of.header().margin + Duration::from_millis(1)).as_nanos()).unwrap();
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

/// Confirms a check of the holder, without its release, during the next hold.
fn verified_beside(of: &Recorded) -> Vec<Vec<Line>> {
    let places = of.followed().map(|(_, invoke, ok, next)| {
        of.edit(|lines| {
            let at = t(lines, next.ok);
            call(lines, invoke, at + 1, at + 2, Op::Renew, Kind::Ok);
            lines.remove(ok);
            lines.remove(invoke);
        })
    });
    places.collect()
}

/// Does the same, where an operator has removed the lock.
fn verified_after_removal(of: &Recorded) -> Vec<Vec<Line>> {
    let places = verified_beside(of).into_iter().map(|mut lines| {
        let verified = record(lines.last().unwrap()).unwrap().clone();
        let next = lines.iter().filter_map(record).filter(|r| {
            r.kind == Kind::Ok && r.op.acquires() && r.lock == verified.lock && r.t < verified.t
        });
        let granted = next.map(|r| r.t).max().unwrap();
        remove(&mut lines, &verified.lock, granted - 1000, "");
        lines
    });
    places.collect()
}

/// Removes a lock between two points, half a microsecond apart.
fn remove(lines: &mut Vec<Line>, lock: &str, at: u64, more: &str) {
    let what = format!(r#""broken","lock":"{lock}","breaks":["A3"]"#);
    add_fault(lines, [at, at + 500], &what, more);
    let Line::Header(header) = &mut lines[0] else { panic!("a header comes first") };
    if !header.breaks.contains(&Assumption::A3) {
        header.breaks.push(Assumption::A3);
    }
}

fn add_fault(lines: &mut Vec<Line>, times: [u64; 2], what: &str, end: &str) {
    let fault = fault_ending(999_999, times, what, end);
    lines.extend(fault.map(|line| Line::parse(line.as_bytes()).unwrap()));
}

/// Removes the lock in the middle of the hold, with no later holder.
fn released_after_removal(of: &Recorded) -> Vec<Vec<Line>> {
    let places = of.sound().map(|(hold, invoke, _)| {
        of.edit(|lines| {
            let at = t(lines, hold.ok).midpoint(t(lines, invoke));
            remove(lines, &hold.lock, at, r#","removed":true"#);
        })
    });
    places.collect()
}

/// Does the same, and the holder checks before its release.
fn renewed_after_removal(of: &Recorded) -> Vec<Vec<Line>> {
    let places = of.sound().map(|(hold, invoke, ok)| {
        of.edit(|lines| {
            let (from, until) = (t(lines, hold.ok), t(lines, invoke));
            call(lines, invoke, until - 1000, until - 500, Op::Renew, Kind::Ok);
            remove(lines, &hold.lock, from.midpoint(until), r#","removed":true"#);
            lines.remove(ok);
            lines.remove(invoke);
        })
    });
    places.collect()
}

/// Delays all records after a release, and the next holder. Neither side meets a fault.
fn late_hand_off(of: &Recorded) -> Vec<Vec<Line>> {
    let header = of.header();
    let lease = u64::try_from(header.lease.unwrap_or_default().as_nanos()).unwrap();
    let late = (lease * LATE).max(3000 * MS);
    let calm = of.with_next(of.ended()).filter(|(hold, invoke, _, next)| {
        let (from, until) = (t(&of.lines, *invoke) - lease, t(&of.lines, next.ok));
        ![hold, next].iter().any(|one| of.feels(one, from, until))
    });
    let places = calm.map(|(_, _, _, next)| {
        of.edit(|lines| {
            let at = t(lines, next.ok);
            lines.iter_mut().filter(|line| line.t() >= Some(at)).for_each(|line| shift(line, late));
        })
    });
    places.collect()
}

/// Lets calls of an undisturbed client fail, one for each hundred that succeed.
fn one_error_in_a_hundred(of: &Recorded) -> Vec<Vec<Line>> {
    let long = of.repeated();
    let recovers = u64::try_from(long.header().recovers.unwrap().as_nanos()).unwrap();
    let of_all: Vec<_> = long.faults(None, "").collect();
    let mut calm = long.holds.clone();
    calm.retain(|hold| {
        let at = t(&long.lines, hold.ok);
        !of_all.iter().any(|&(from, until)| from <= at && at <= until + recovers)
    });
    let count = usize::try_from(undisturbed(&long.lines)).unwrap() / 99;
    let (count, step) = (count.max(1), calm.len() / count.max(1));
    let places = (0..*PLACES.start()).map(|offset| {
        long.edit(|lines| {
            for hold in calm.iter().skip(offset * step / PLACES.start()).step_by(step).take(count) {
                let at = t(lines, hold.ok);
                let answer = call(lines, hold.invoke, at, at + 1, Op::Try, Kind::Fail);
                record_mut(&mut lines[answer]).err = Some(Why::Other("Unavailable".to_owned()));
            }
        })
    });
    places.collect()
}

/// Adds a short fault of a waiter's process, after which all others are served before it.
fn starved_after_fault(of: &Recorded) -> Vec<Vec<Line>> {
    let long = of.repeated();
    let end = long.lines.iter().filter_map(Line::t).max().unwrap();
    let waits = long
        .holds
        .iter()
        .filter(|hold| hold.op == Op::Acquire && t(&long.lines, hold.invoke) + 40_000 * MS < end);
    let waits: Vec<_> = waits.collect();
    let places = waits.iter().step_by(waits.len().div_ceil(*PLACES.start())).map(|hold| {
        let grant = record(&long.lines[hold.ok]).unwrap().grant.clone();
        long.edit(|lines| {
            let begun = t(lines, hold.invoke);
            let (host, _) = record(&lines[hold.ok]).unwrap().process.split_once('/').unwrap();
            let process = format!("{host}/starved");
            let delay = format!(r#""delay","proc":"{host}""#);
            let token = long.new_token(&hold.lock);
            for index in [hold.invoke, hold.ok] {
                record_mut(&mut lines[index]).process.clone_from(&process);
            }
            let answer = record_mut(&mut lines[hold.ok]);
            (answer.t, answer.fence) = (end + 1, token);
            answer.valid_until = answer.valid_until.map(|_| end + MS);
            call(lines, hold.ok, end + 2, end + 3, Op::Release, Kind::Ok);
            let mut index = 0;
            lines.retain(|line| {
                index += 1;
                let is_of_it = record(line).is_some_and(|r| r.grant == grant);
                !is_of_it || [hold.invoke, hold.ok].contains(&(index - 1)) || line.t() > Some(end)
            });
            add_fault(lines, [begun + 1, begun + MS], &delay, "");
        })
    });
    places.collect()
}

fn is_about(fault: &Fault, lock: &str) -> bool {
    fault.locks.as_ref().is_none_or(|all| all.iter().any(|one| one == lock))
}

fn undisturbed(lines: &[Line]) -> u64 {
    let report = check(&History::new(lines.to_vec()).unwrap());
    assert!(report.is_legal(), "{report}");
    report.tallies().iter().map(|(_, tally)| tally.count).sum()
}

/// Moves a line to a later time.
fn shift(line: &mut Line, by: u64) {
    match line {
        Line::Header(_) => {}
        Line::Record(record) => {
            record.t += by;
            record.valid_until = record.valid_until.filter(|&until| until > 0).map(|t| t + by);
        }
        Line::Fault(fault) => fault.t += by,
        Line::Heal(heal) => heal.t += by,
        Line::Residue(residue) => residue.t += by,
    }
}
