//! Measurements: the figures of a library, as a run writes them and a report reads them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Value, json};

/// How far a figure can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FigureKind {
    /// Counted, by the server or by the run: the same on every machine. CI can compare such figures
    /// with goals.
    Count,
    /// CPU time of processes: other load hardly changes it.
    Cpu,
    /// Wall-clock time: reported, and meaningful only as a ratio.
    Time,
}

/// The name of a figure, with its unit, and its kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Figure {
    kind: FigureKind,
    pub(crate) name: Cow<'static, str>,
}

impl Figure {
    pub(crate) const fn count(name: &'static str) -> Self {
        Self { kind: FigureKind::Count, name: Cow::Borrowed(name) }
    }

    pub(crate) const fn cpu(name: &'static str) -> Self {
        Self { kind: FigureKind::Cpu, name: Cow::Borrowed(name) }
    }

    pub(crate) const fn time(name: &'static str) -> Self {
        Self { kind: FigureKind::Time, name: Cow::Borrowed(name) }
    }
}

pub(crate) type Figures = BTreeMap<Figure, f64>;

/// The points that a picture shows of a measurement.
///
/// For times, each point is a number of microseconds and how often it occurred; for takeovers,
/// milliseconds. For a crowd, it is the position of a waiter by arrival and by service.
pub(crate) type Shape = Vec<[f64; 2]>;

/// Counts how often each value occurred, in steps of a twentieth of a power of ten.
pub(crate) fn shape(values: impl IntoIterator<Item = (f64, u64)>) -> Shape {
    const STEPS: f64 = 20.0;

    let mut steps: BTreeMap<i64, u64> = BTreeMap::new();
    for (value, count) in values.into_iter().filter(|(value, _)| *value > 0.0) {
        *steps.entry((value.log10() * STEPS).floor() as i64).or_default() += count;
    }
    let middle = |step: i64| 10_f64.powf((step as f64 + 0.5) / STEPS);
    steps.into_iter().map(|(step, count)| [middle(step), count as f64]).collect()
}

/// One measurement: of one library, in one round.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) workload: String,
    pub(crate) lib: String,
    pub(crate) round: usize,
    pub(crate) figures: Figures,
    pub(crate) shape: Shape,
}

/// The keys in JSON of the figures of each kind.
const KINDS: [(FigureKind, &str); 3] =
    [(FigureKind::Count, "counts"), (FigureKind::Cpu, "cpu"), (FigureKind::Time, "times")];

impl Row {
    pub(crate) fn new(workload: &str, lib: &str, round: usize, figures: Figures) -> Self {
        let (workload, lib) = (workload.to_owned(), lib.to_owned());
        Self { workload, lib, round, figures, shape: Shape::new() }
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut line = json!({ "workload": self.workload, "lib": self.lib, "round": self.round });
        for (kind, key) in KINDS {
            let of_kind = self.figures.iter().filter(|(figure, _)| figure.kind == kind);
            let of_kind: BTreeMap<&str, f64> =
                of_kind.map(|(figure, value)| (&*figure.name, *value)).collect();
            if !of_kind.is_empty() {
                line[key] = json!(of_kind);
            }
        }
        if !self.shape.is_empty() {
            line["shape"] = json!(self.shape);
        }
        line
    }

    /// Reads a row that [`to_json`](Self::to_json) has written.
    pub(crate) fn from_json(line: &Value) -> Option<Self> {
        let text = |key: &str| line[key].as_str().map(str::to_owned);
        let mut figures = Figures::new();
        for (kind, key) in KINDS {
            for (name, value) in line[key].as_object().into_iter().flatten() {
                // JSON has `null` for a value that is not a number.
                let figure = Figure { kind, name: name.clone().into() };
                figures.extend(value.as_f64().map(|value| (figure, value)));
            }
        }
        let points = line["shape"].as_array().into_iter().flatten();
        let shape = points.filter_map(|point| Some([point[0].as_f64()?, point[1].as_f64()?]));
        Some(Self {
            workload: text("workload")?,
            lib: text("lib")?,
            round: usize::try_from(line["round"].as_u64()?).ok()?,
            figures,
            shape: shape.collect(),
        })
    }
}
