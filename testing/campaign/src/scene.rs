//! A piece of a history that is worth looking at: a holder that was stopped, cut off or killed, and what
//! became of its lock.

use std::collections::{BTreeMap, HashMap};

use lock_history::{Kind, Line, Op, Record, Trouble, Why};
use serde::{Deserialize, Serialize};

/// Around a takeover, in nanoseconds.
const BEFORE: u64 = 150_000_000;
const AFTER: u64 = 250_000_000;

/// No scene is longer: it would not fit on a page.
const LONGEST: u64 = 6_000_000_000;

/// So many rows fit on a page.
const ROWS: usize = 14;

/// What happened to one lock in a short time. Times are nanoseconds from its start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Scene {
    /// On which lock.
    pub lock: String,
    /// How long it lasts.
    pub length: u64,
    /// Who took part.
    pub rows: Vec<Row>,
    /// How interesting it is.
    pub score: u32,
}

/// What one client's task did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// What lasted.
    pub spans: Vec<Span>,
    /// What happened at one point in time.
    pub marks: Vec<Mark>,
}

/// Something that lasted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Span {
    /// What.
    pub what: SpanKind,
    /// From when.
    pub from: u64,
    /// Until when.
    pub until: u64,
}

/// What can last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanKind {
    /// A wait for the lock.
    Waits,
    /// A claim: the application may rely on the lock.
    Holds,
    /// A fault.
    Fault,
}

/// Something that happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Mark {
    /// What.
    pub what: MarkKind,
    /// When.
    pub at: u64,
    /// The fence that was shown, or why.
    pub text: String,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkKind {
    /// A loss was told.
    Lost,
    /// A write that the fenced resource let pass.
    Write,
    /// A read or a write that it refused.
    Refused,
}

/// The best scene of a history.
pub(crate) fn best(lines: &[Line]) -> Option<Scene> {
    let grants = grants(lines);
    let troubles = troubles(lines);
    let mut best: Option<(u32, u64, u64, &str)> = None;
    for trouble in troubles.iter().filter(|trouble| trouble.silences) {
        for (lock, of_lock) in &grants {
            let Some((score, from, until)) = rate(trouble, of_lock) else { continue };
            if best.is_none_or(|(most, ..)| score > most) {
                best = Some((score, from, until, lock));
            }
        }
    }
    let (score, from, until, lock) = best?;
    Some(Scene {
        lock: lock.to_owned(),
        length: until - from,
        score,
        rows: rows(lines, &troubles, lock, from, until),
    })
}

struct Granted<'a> {
    host: &'a str,
    fence: u64,
    from: u64,
    until: u64,
    lost: bool,
    refused: Option<u64>,
}

struct Fault<'a> {
    host: &'a str,
    from: u64,
    until: u64,
    silences: bool,
}

fn host(process: &str) -> &str {
    process.split('/').next().unwrap_or(process)
}

/// The grants of each lock, by fence.
fn grants(lines: &[Line]) -> BTreeMap<&str, Vec<Granted<'_>>> {
    let mut place: HashMap<&str, (&str, usize)> = HashMap::new();
    let mut by_fence: HashMap<(&str, u64), usize> = HashMap::new();
    let mut all: BTreeMap<&str, Vec<Granted<'_>>> = BTreeMap::new();
    for record in lines.iter().filter_map(record) {
        let grant = record.grant.as_deref().and_then(|grant| place.get(grant)).copied();
        if record.op.acquires() && record.kind == Kind::Ok {
            let (Some(grant), Some(fence)) = (&record.grant, record.fence) else { continue };
            let of_lock = all.entry(&record.lock).or_default();
            place.insert(grant, (&record.lock, of_lock.len()));
            by_fence.insert((&record.lock, fence), of_lock.len());
            let until = record.valid_until.unwrap_or(u64::MAX);
            let host = host(&record.process);
            of_lock.push(Granted {
                host,
                fence,
                from: record.t,
                until,
                lost: false,
                refused: None,
            });
        } else if let (Some((lock, index)), Op::Release | Op::Lost) = (grant, record.op) {
            let granted = &mut all.get_mut(lock).expect("it has a grant")[index];
            granted.until = granted.until.min(record.t);
            granted.lost |= record.op == Op::Lost;
        } else if let (Some((lock, index)), Some(valid_until)) = (grant, record.valid_until) {
            let granted = &mut all.get_mut(lock).expect("it has a grant")[index];
            if !granted.lost {
                granted.until = granted.until.max(valid_until);
            }
        } else if record.err == Some(Why::Fenced)
            && let Some(fence) = record.fence
            && let Some(&index) = by_fence.get(&(&*record.lock, fence))
        {
            all.get_mut(&*record.lock).expect("it has a grant")[index].refused = Some(record.t);
        }
    }
    all.values_mut().for_each(|grants| grants.sort_by_key(|granted| granted.fence));
    all
}

fn troubles(lines: &[Line]) -> Vec<Fault<'_>> {
    let end = lines.iter().filter_map(Line::t).max().unwrap_or(0);
    let mut open: HashMap<u64, usize> = HashMap::new();
    let mut all = Vec::new();
    for line in lines {
        match line {
            Line::Fault(fault) => {
                let Some(process) = &fault.process else { continue };
                open.insert(fault.id, all.len());
                let silences =
                    matches!(fault.what, Trouble::Stop | Trouble::Kill | Trouble::Partition);
                all.push(Fault { host: process, from: fault.t, until: end, silences });
            }
            Line::Heal(heal) => {
                if let Some(index) = open.get(&heal.id) {
                    all[*index].until = heal.t;
                }
            }
            _ => {}
        }
    }
    all
}

/// How much of the story there is: the holder is hit, the next one takes over, the first one is told, and
/// what it still tries is refused.
fn rate(fault: &Fault<'_>, grants: &[Granted<'_>]) -> Option<(u32, u64, u64)> {
    let index = grants.iter().position(|granted| {
        granted.host == fault.host && granted.from < fault.from && granted.until > fault.from
    })?;
    let (hit, next) = (&grants[index], grants.get(index + 1)?);
    if next.host == hit.host || next.from <= fault.from || next.from > fault.from + LONGEST / 2 {
        return None;
    }
    let end = hit.refused.unwrap_or(0).max(next.from).max(fault.until.min(next.from + LONGEST / 4));
    let (from, until) = (hit.from.max(fault.from.saturating_sub(BEFORE)), end + AFTER);
    if until - from > LONGEST {
        return None;
    }
    let mut score = 1 + u32::from(hit.lost);
    score += if hit.refused.is_some_and(|at| at > next.from) { 4 } else { 0 };
    score += u32::from(fault.until > next.from && fault.until < until);
    Some((score, from.saturating_sub(BEFORE), until))
}

fn record(line: &Line) -> Option<&Record> {
    if let Line::Record(record) = line { Some(record) } else { None }
}

/// What everybody did about `lock` between two points in time.
fn rows(lines: &[Line], faults: &[Fault<'_>], lock: &str, from: u64, until: u64) -> Vec<Row> {
    let mut rows: BTreeMap<&str, Row> = BTreeMap::new();
    let mut waits: HashMap<&str, u64> = HashMap::new();
    // Of each grant: whose it is, and its claim.
    let mut claims: HashMap<&str, (&str, u64, u64)> = HashMap::new();
    let at = |t: u64| t.clamp(from, until) - from;
    let mut spans: Vec<(&str, Span)> = Vec::new();
    let mut marks: Vec<(&str, Mark)> = Vec::new();
    for record in lines.iter().filter_map(record).filter(|record| record.lock == lock) {
        let task = task(&record.process);
        let mut mark = |what, text: String| {
            if (from..until).contains(&record.t) {
                marks.push((task, Mark { what, at: at(record.t), text }));
            }
        };
        let fence = record.fence.map(|fence| fence.to_string()).unwrap_or_default();
        match (record.op, record.kind) {
            (Op::Acquire | Op::Try, Kind::Invoke) => {
                waits.insert(&record.process, record.t);
            }
            (Op::Acquire | Op::Try, kind) => {
                let begun = waits.remove(&*record.process).unwrap_or(record.t);
                spans.push((task, Span { what: SpanKind::Waits, from: begun, until: record.t }));
                if let (Kind::Ok, Some(grant)) = (kind, &record.grant) {
                    let end = record.valid_until.unwrap_or(u64::MAX);
                    claims.insert(grant, (task, record.t, end));
                }
            }
            (Op::Release, Kind::Invoke) | (Op::Lost, _) => {
                let claim = record.grant.as_deref().and_then(|grant| claims.remove(grant));
                if let Some((task, begun, end)) = claim {
                    let end = end.min(record.t);
                    spans.push((task, Span { what: SpanKind::Holds, from: begun, until: end }));
                }
                if record.op == Op::Lost {
                    mark(MarkKind::Lost, String::new());
                }
            }
            (Op::Write | Op::Read, Kind::Fail) => mark(MarkKind::Refused, fence),
            (Op::Write, Kind::Ok) => mark(MarkKind::Write, fence),
            (_, Kind::Ok | Kind::Event) => {
                if let Some(claim) = record.grant.as_deref().and_then(|grant| claims.get_mut(grant))
                {
                    claim.2 = claim.2.max(record.valid_until.unwrap_or(0));
                }
            }
            _ => {}
        }
    }
    for (task, begun, end) in claims.into_values() {
        spans.push((task, Span { what: SpanKind::Holds, from: begun, until: end }));
    }
    for (task, begun) in waits {
        spans.push((self::task(task), Span { what: SpanKind::Waits, from: begun, until }));
    }
    let blank = |name: &str| Row { name: name.to_owned(), spans: Vec::new(), marks: Vec::new() };
    for (task, span) in spans.into_iter().filter(|(_, span)| span.from < until && span.until > from)
    {
        let row = rows.entry(task).or_insert_with(|| blank(task));
        row.spans.push(Span { from: at(span.from), until: at(span.until), ..span });
    }
    for (task, mark) in marks {
        rows.entry(task).or_insert_with(|| blank(task)).marks.push(mark);
    }
    let mut rows = busiest(rows.into_values().collect());
    rows.iter_mut().for_each(|row| add_faults(row, faults, from, until));
    rows
}

/// Below all else.
fn add_faults(row: &mut Row, faults: &[Fault<'_>], from: u64, until: u64) {
    let at = |t: u64| t.clamp(from, until) - from;
    let hit = faults.iter().filter(|fault| fault.host == host(&row.name));
    let hit = hit.filter(|fault| fault.from < until && fault.until > from);
    let spans = hit.map(|fault| Span {
        what: SpanKind::Fault,
        from: at(fault.from),
        until: at(fault.until),
    });
    row.spans.splice(0..0, spans.collect::<Vec<_>>());
}

/// Who held it, or tried to write, before those who only waited.
fn busiest(mut rows: Vec<Row>) -> Vec<Row> {
    let acts = |row: &Row| {
        row.marks.len() + row.spans.iter().filter(|span| span.what == SpanKind::Holds).count()
    };
    rows.sort_by_key(|row| std::cmp::Reverse(acts(row)));
    rows.truncate(ROWS);
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    rows
}

/// The task that a name belongs to, whatever it was called after calls with unknown outcome.
fn task(process: &str) -> &str {
    process.split('+').next().unwrap_or(process)
}
