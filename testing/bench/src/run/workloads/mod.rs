//! The workloads. Each measures exact figures first, if the backend has a server that counts, and
//! then times, unless only exact figures are requested.

mod crowd;
mod deep;
mod handoff;
mod held;
mod hung;
mod idle;
mod killed;
mod pairs;

use super::bench::Bench;
use crate::run::error::Result;

pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&mut Bench<'_>) -> Result<()>,
}

pub(crate) const WORKLOADS: &[Workload] = &[
    Workload { name: "pairs", run: pairs::run },
    Workload { name: "paced", run: pairs::paced },
    Workload { name: "handoff", run: handoff::run },
    Workload { name: "crowd", run: crowd::run },
    Workload { name: "growth", run: crowd::growth },
    Workload { name: "deep", run: deep::run },
    Workload { name: "idle", run: idle::run },
    Workload { name: "held", run: held::run },
    Workload { name: "killed", run: killed::run },
    Workload { name: "hung", run: hung::run },
];
