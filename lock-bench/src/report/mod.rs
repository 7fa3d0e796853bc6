//! What was measured, and what becomes of it.

mod goals;
mod summary;
mod table;

use std::collections::BTreeMap;

use serde_json::{Value, json};

pub(crate) use goals::Goals;
pub(crate) use summary::Summary;

/// How far a figure can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Counted, by the server or by us: the same on every machine. These may be goals in CI.
    Count,
    /// Time that processes were running: hardly moved by neighbours.
    Cpu,
    /// Time on the wall: reported, and worth something only as a ratio.
    Time,
}

/// What a number says. The name has its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Figure {
    kind: Kind,
    name: &'static str,
}

impl Figure {
    pub(crate) const fn count(name: &'static str) -> Self {
        Self { kind: Kind::Count, name }
    }

    pub(crate) const fn cpu(name: &'static str) -> Self {
        Self { kind: Kind::Cpu, name }
    }

    pub(crate) const fn time(name: &'static str) -> Self {
        Self { kind: Kind::Time, name }
    }
}

pub(crate) type Figures = BTreeMap<Figure, f64>;

/// One measurement: of one library, in one round.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) workload: String,
    pub(crate) lib: String,
    pub(crate) round: usize,
    pub(crate) figures: Figures,
}

impl Row {
    pub(crate) fn to_json(&self) -> Value {
        let figures: BTreeMap<&str, f64> =
            self.figures.iter().map(|(figure, value)| (figure.name, *value)).collect();
        json!({
            "workload": self.workload,
            "lib": self.lib,
            "round": self.round,
            "figures": figures,
        })
    }
}
