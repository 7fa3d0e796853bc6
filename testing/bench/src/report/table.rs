//! The summary as text.

use std::fmt;
use std::ops::Range;

use super::Summary;
use super::summary::{LibSummary, Spread};
use crate::model::Figure;

/// The columns of libraries side by side; the names of figures take some thirty more.
const WIDTH: usize = 110;

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.has_ratios() {
            writeln!(f, "\nmedian (least–most) of all rounds")?;
            writeln!(
                f,
                "× floor: divided by the floor, measured right before and after, which is the first column"
            )?;
        }
        for (workload, lines) in &self.workloads {
            writeln!(f, "\n{workload}")?;
            table(f, lines)?;
        }
        Ok(())
    }
}

impl Summary {
    fn has_ratios(&self) -> bool {
        let lines = self.workloads.iter().flat_map(|(_, lines)| lines);
        lines.flat_map(|line| &line.figures).any(|(figure, _)| figure.name.contains("× floor"))
    }
}

/// Returns one column for each library and one row for each figure, as more figures than libraries
/// would not fit side by side. The first row has the names.
pub(super) fn cells(lines: &[LibSummary]) -> Vec<Vec<String>> {
    let mut figures: Vec<Figure> = lines
        .iter()
        .flat_map(|line| line.figures.iter().map(|(figure, _)| figure.clone()))
        .collect();
    figures.sort();
    figures.dedup();
    let mut head = vec![String::new()];
    head.extend(lines.iter().map(|line| line.lib.clone()));
    let row = |figure: &Figure| {
        let mut row = vec![figure.name.to_string()];
        row.extend(lines.iter().map(|line| cell(line, figure)));
        row
    };
    std::iter::once(head).chain(figures.iter().map(row)).collect()
}

fn table(f: &mut fmt::Formatter<'_>, lines: &[LibSummary]) -> fmt::Result {
    let rows = cells(lines);
    let width =
        |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let mut next = 1;
    while next < rows[0].len() {
        let columns = fitting(next..rows[0].len(), width);
        for row in &rows {
            write!(f, "  {:<first$}", row[0], first = width(0))?;
            for column in columns.clone() {
                write!(f, "   {cell:>width$}", cell = row[column], width = width(column))?;
            }
            writeln!(f)?;
        }
        next = columns.end;
    }
    Ok(())
}

/// Returns as many of these columns as fit side by side, and at least one.
fn fitting(columns: Range<usize>, width: impl Fn(usize) -> usize) -> Range<usize> {
    let mut wide = 0;
    let fits = |column: &usize| {
        wide += width(*column) + 3;
        wide <= WIDTH
    };
    let count = columns.clone().take_while(fits).count();
    columns.start..columns.start + count.max(1)
}

fn cell(line: &LibSummary, figure: &Figure) -> String {
    let spread = line.figures.iter().find(|(known, _)| known == figure);
    spread.map(|(_, spread)| spread.to_string()).unwrap_or_default()
}

impl fmt::Display for Spread {
    /// Formats `median (min–max)`, or just the number if all rounds agree.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, min, max] = [self.median, self.min, self.max].map(short);
        match min == max {
            true => write!(f, "{median}"),
            false => write!(f, "{median} ({min}–{max})"),
        }
    }
}

/// Formats three digits: a measurement has no more.
pub(super) fn short(value: f64) -> String {
    let text = match value.abs() {
        100.0.. => return format!("{value:.0}"),
        10.0..100.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
