//! All rounds of a library together: the median and the range.

use crate::model::{Figure, Row};

#[derive(Debug)]
pub(crate) struct Summary {
    /// Workloads and libraries in the order of their first rows.
    pub(crate) workloads: Vec<(String, Vec<LibSummary>)>,
}

#[derive(Debug)]
pub(crate) struct LibSummary {
    pub(crate) lib: String,
    pub(crate) figures: Vec<(Figure, Spread)>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Summary {
    pub(crate) fn of(rows: &[Row]) -> Self {
        let mut workloads: Vec<(String, Vec<LibSummary>)> = Vec::new();
        for row in rows {
            let lines = entry(
                &mut workloads,
                |(name, _)| *name == row.workload,
                || (row.workload.clone(), Vec::new()),
            );
            entry(&mut lines.1, |line| line.lib == row.lib, || LibSummary::of(&row.lib, row, rows));
        }
        Self { workloads }
    }

    pub(crate) fn find(&self, workload: &str, lib: &str, figure: &str) -> Option<Spread> {
        let (_, lines) = self.workloads.iter().find(|(name, _)| name == workload)?;
        let line = lines.iter().find(|line| line.lib == lib)?;
        line.figures.iter().find(|(known, _)| known.name == figure).map(|(_, spread)| *spread)
    }

    /// Returns whether the library took locks over before their leases had ended. How late it was
    /// is then no merit.
    pub(super) fn breaks_leases(&self, workload: &str, lib: &str) -> bool {
        self.too_early(workload, lib).is_some()
    }

    /// Returns the number of its takeovers that were too early, if any were.
    pub(super) fn too_early(&self, workload: &str, lib: &str) -> Option<f64> {
        let early = self.find(workload, lib, "takeovers too early")?.median;
        (early > 0.0).then_some(early)
    }
}

/// Returns the matching element, or appends a new one.
fn entry<T>(list: &mut Vec<T>, is_meant: impl Fn(&T) -> bool, make: impl FnOnce() -> T) -> &mut T {
    let at = list.iter().position(is_meant).unwrap_or_else(|| {
        list.push(make());
        list.len() - 1
    });
    &mut list[at]
}

impl LibSummary {
    fn of(lib: &str, like: &Row, rows: &[Row]) -> Self {
        let rows = rows.iter().filter(|row| row.workload == like.workload && row.lib == lib);
        let mut values: Vec<(Figure, Vec<f64>)> = Vec::new();
        for (figure, value) in rows.flat_map(|row| &row.figures) {
            let known = |(known, _): &(Figure, _)| known == figure;
            entry(&mut values, known, || (figure.clone(), Vec::new())).1.push(*value);
        }
        values.sort_by(|(one, _), (other, _)| one.cmp(other));
        let figures = values.into_iter().map(|(figure, values)| (figure, Spread::of(values)));
        Self { lib: lib.to_owned(), figures: figures.collect() }
    }
}

impl Spread {
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let (min, max) = (values[0], values[values.len() - 1]);
        let middle = values.len() / 2;
        let median = match values.len() % 2 {
            0 => f64::midpoint(values[middle - 1], values[middle]),
            _ => values[middle],
        };
        Self { median, min, max }
    }
}
