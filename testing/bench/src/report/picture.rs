//! Pictures, as inline SVG. One row for each library, the floor first.

use std::fmt::Write as _;

use super::table::short;

pub(super) const WIDTH: f64 = 900.0;
/// Names are left of this, values right of the other.
const LEFT: f64 = 175.0;
const RIGHT: f64 = 690.0;
const ROW: f64 = 26.0;

/// The unit of a value, for the labels of axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Micros,
    Millis,
    /// The title of the axis names the unit.
    Plain,
}

/// A library in a picture.
pub(super) struct Entry {
    pub(super) name: String,
    /// The colour: `floor`, `ours`, `other` or `tuned`.
    pub(super) class: &'static str,
    pub(super) value: f64,
    /// The least and the greatest value of all rounds.
    pub(super) ends: (f64, f64),
    pub(super) shape: Vec<[f64; 2]>,
    /// The text at the end of the row.
    pub(super) note: String,
}

/// A line across a picture, and its name.
pub(super) struct Mark {
    pub(super) value: f64,
    pub(super) name: String,
}

/// Draws distributions, one below the other, on a shared logarithmic axis.
pub(super) fn distributions(
    entries: &[Entry],
    unit: Unit,
    title: &str,
    mark: Option<&Mark>,
) -> String {
    let values = entries.iter().flat_map(|entry| entry.shape.iter().map(|point| point[0]));
    let values = values.chain(entries.iter().map(|entry| entry.value)).chain(mark.map(|m| m.value));
    let Some(axis) = Axis::logarithmic(values, LEFT, RIGHT) else { return String::new() };
    let mut svg = Canvas::open(entries.len() as f64 * ROW + 62.0, title);
    svg.axis(&axis, unit, title, 18.0, entries.len() as f64 * ROW + 18.0);
    for (i, entry) in entries.iter().enumerate() {
        let foot = i as f64 * ROW + 18.0 + ROW - 3.0;
        svg.names(entry, foot - 5.0);
        let most = entry.shape.iter().map(|point| point[1]).fold(0.0, f64::max);
        for [value, count] in &entry.shape {
            let height = (count / most * (ROW - 6.0)).max(1.0);
            let half = axis.step() / 2.0;
            svg.rect(entry.class, axis.at(*value) - half, foot - height, 2.0 * half, height);
        }
        svg.line(
            "median",
            axis.at(entry.value),
            foot - ROW + 6.0,
            axis.at(entry.value),
            foot + 2.0,
        );
        svg.line("rail", LEFT, foot, RIGHT, foot);
    }
    svg.mark(&axis, mark, 18.0, entries.len() as f64 * ROW + 18.0);
    svg.close()
}

/// Draws a bar for each value, from zero.
pub(super) fn bars(entries: &[Entry], unit: Unit, title: &str, mark: Option<&Mark>) -> String {
    let most = entries.iter().map(|entry| entry.ends.1).chain(mark.map(|mark| mark.value));
    let axis = Axis::linear(most.fold(0.0, f64::max), LEFT, RIGHT);
    let Some(axis) = axis.filter(|_| !entries.is_empty()) else { return String::new() };
    let foot = entries.len() as f64 * ROW + 18.0;
    let mut svg = Canvas::open(foot + 44.0, title);
    svg.axis(&axis, unit, title, 18.0, foot);
    for (i, entry) in entries.iter().enumerate() {
        let top = i as f64 * ROW + 18.0 + 5.0;
        svg.names(entry, top + 12.0);
        svg.rect(entry.class, LEFT, top, (axis.at(entry.value) - LEFT).max(1.5), ROW - 10.0);
        if entry.ends.0 < entry.ends.1 {
            let middle = top + (ROW - 10.0) / 2.0;
            svg.line("median", axis.at(entry.ends.0), middle, axis.at(entry.ends.1), middle);
        }
    }
    svg.mark(&axis, mark, 18.0, foot);
    svg.close()
}

/// Draws a line for each library over the number of waiters, on logarithmic axes.
pub(super) fn curves(entries: &[Entry], across: &str, up: &str, floor: &Mark) -> String {
    const TOP: f64 = 14.0;
    const FOOT: f64 = 330.0;
    const FROM: f64 = 70.0;

    let points = || entries.iter().flat_map(|entry| &entry.shape);
    let x = Axis::logarithmic(points().map(|point| point[0]), FROM, RIGHT);
    let y = Axis::logarithmic(points().map(|point| point[1]).chain([floor.value]), FOOT, TOP);
    let Some((x, y)) = x.zip(y) else { return String::new() };
    let mut svg = Canvas::open(FOOT + 46.0, up);
    svg.axis(&x, Unit::Plain, across, TOP, FOOT);
    for value in y.ticks() {
        svg.line("rail", FROM, y.at(value), RIGHT, y.at(value));
        svg.text("tick end", FROM - 8.0, y.at(value) + 4.0, &short(value));
    }
    svg.turned(up, 16.0, (TOP + FOOT) / 2.0);
    svg.line("bound", FROM, y.at(floor.value), RIGHT, y.at(floor.value));
    let mut labels = vec![(y.at(floor.value), "boundtext start", floor.name.clone())];
    for entry in entries {
        let Some([last_x, last_y]) = entry.shape.last() else { continue };
        let path: Vec<String> =
            entry.shape.iter().map(|p| format!("{:.1},{:.1}", x.at(p[0]), y.at(p[1]))).collect();
        svg.write(&format!("<polyline class=\"{}\" points=\"{}\"/>", entry.class, path.join(" ")));
        for point in &entry.shape {
            svg.dot(entry.class, x.at(point[0]), y.at(point[1]), 3);
        }
        svg.line("rail", x.at(*last_x), y.at(*last_y), RIGHT, y.at(*last_y));
        labels.push((y.at(*last_y), "note", format!("{} {}", entry.name, entry.note)));
    }
    for (at, class, label) in apart(labels, 13.0, FOOT) {
        svg.text(class, RIGHT + 8.0, at + 4.0, &label);
    }
    svg.close()
}

/// Moves labels apart by the height of a line, with none below `foot`.
fn apart<T>(
    mut labels: Vec<(f64, &'static str, T)>,
    line: f64,
    foot: f64,
) -> Vec<(f64, &'static str, T)> {
    labels.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut limit = f64::NEG_INFINITY;
    for (at, ..) in &mut labels {
        *at = at.max(limit);
        limit = *at + line;
    }
    let mut limit = foot;
    for (at, ..) in labels.iter_mut().rev() {
        *at = at.min(limit);
        limit = *at - line;
    }
    labels
}

/// Draws the position of each waiter by arrival and by service: a diagonal, if no waiter was
/// overtaken.
pub(super) fn orders(entries: &[Entry]) -> String {
    const SIDE: f64 = 130.0;
    const CELL: f64 = 180.0;
    const EACH: f64 = 222.0;

    let rows = entries.len().div_ceil(5);
    let mut svg = Canvas::open(rows as f64 * EACH + 6.0, "order of service");
    for (i, entry) in entries.iter().enumerate() {
        let left = (i % 5) as f64 * CELL + 22.0;
        let top = (i / 5) as f64 * EACH + 20.0;
        let most = entry.shape.iter().flatten().copied().fold(1.0, f64::max);
        let at = |place: f64| (place - 1.0) / (most - 1.0).max(1.0) * (SIDE - 8.0) + 4.0;
        svg.text("name", left, top - 6.0, &entry.name);
        svg.write(&format!(
            "<rect class=\"frame\" x=\"{left}\" y=\"{top}\" width=\"{SIDE}\" height=\"{SIDE}\"/>"
        ));
        svg.line("bound", left + 4.0, top + SIDE - 4.0, left + SIDE - 4.0, top + 4.0);
        for [came, served] in &entry.shape {
            svg.dot(entry.class, left + at(*came), top + SIDE - at(*served), 2);
        }
        svg.text("tick start", left, top + SIDE + 14.0, "came first → last");
        svg.turned("served first → last", left - 6.0, top + SIDE / 2.0);
        for (line, note) in entry.note.split(", ").enumerate() {
            svg.text("tick start", left, top + SIDE + 30.0 + 14.0 * line as f64, note);
        }
    }
    svg.close()
}

/// A mapping of values to coordinates.
struct Axis {
    logarithmic: bool,
    from: f64,
    to: f64,
    left: f64,
    right: f64,
}

impl Axis {
    /// Spans all these values, and a little more at both ends.
    fn logarithmic(values: impl Iterator<Item = f64>, left: f64, right: f64) -> Option<Self> {
        let logs: Vec<f64> = values.filter(|value| *value > 0.0).map(f64::log10).collect();
        let least = logs.iter().copied().fold(f64::INFINITY, f64::min);
        let most = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let room = ((most - least) * 0.04).max(0.06);
        let (from, to) = (least - room, most + room);
        least.is_finite().then_some(Self { logarithmic: true, from, to, left, right })
    }

    fn linear(most: f64, left: f64, right: f64) -> Option<Self> {
        let is_some = most > 0.0 && most.is_finite();
        is_some.then_some(Self { logarithmic: false, from: 0.0, to: most * 1.04, left, right })
    }

    fn at(&self, value: f64) -> f64 {
        let value = if self.logarithmic { value.max(f64::MIN_POSITIVE).log10() } else { value };
        let part = ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0);
        self.left + part * (self.right - self.left)
    }

    /// Returns the width of a twentieth of a power of ten.
    fn step(&self) -> f64 {
        ((self.right - self.left) / (self.to - self.from) / 20.0).max(1.5)
    }

    /// Returns round values, not too many.
    fn ticks(&self) -> Vec<f64> {
        if !self.logarithmic {
            let rough = self.to / 6.0;
            let power = 10_f64.powf(rough.log10().floor());
            let step = [1.0, 2.0, 5.0, 10.0].map(|part| part * power);
            let step = step.into_iter().find(|step| *step >= rough).unwrap_or(rough);
            let count = (self.to / step).floor() as u32;
            return (0..=count).map(|i| f64::from(i) * step).collect();
        }
        let powers = self.from.floor() as i32..=self.to.ceil() as i32;
        let parts: &[f64] = match self.to - self.from {
            wide if wide > 3.0 => &[1.0],
            middle if middle > 1.2 => &[1.0, 3.0],
            _ => &[1.0, 2.0, 3.0, 5.0, 7.0],
        };
        let ticks =
            powers.flat_map(|power| parts.iter().map(move |part| part * 10_f64.powi(power)));
        ticks.filter(|tick| (self.from..=self.to).contains(&tick.log10())).collect()
    }
}

struct Canvas(String);

impl Canvas {
    fn open(height: f64, label: &str) -> Self {
        let label = escaped(label);
        Self(format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{label}\">"))
    }

    fn write(&mut self, text: &str) {
        self.0 += text;
    }

    fn close(self) -> String {
        self.0 + "</svg>"
    }

    fn line(&mut self, class: &str, x1: f64, y1: f64, x2: f64, y2: f64) {
        let _ = write!(
            self.0,
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        );
    }

    fn rect(&mut self, class: &str, x: f64, y: f64, width: f64, height: f64) {
        let _ = write!(
            self.0,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
        );
    }

    fn dot(&mut self, class: &str, x: f64, y: f64, radius: u32) {
        self.0 +=
            &format!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\"/>");
    }

    fn text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        let text = escaped(text);
        let _ = write!(self.0, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>");
    }

    /// Writes text that is read from below.
    fn turned(&mut self, text: &str, x: f64, y: f64) {
        let text = escaped(text);
        let _ = write!(
            self.0,
            "<text class=\"tick\" transform=\"translate({x:.1} {y:.1}) rotate(-90)\">{text}</text>"
        );
    }

    /// Writes the name of the row's library, and its note.
    fn names(&mut self, entry: &Entry, y: f64) {
        let class = if entry.class == "ours" { "name end strong" } else { "name end" };
        self.text(class, LEFT - 8.0, y, &entry.name);
        self.text("note", RIGHT + 10.0, y, &entry.note);
    }

    fn axis(&mut self, axis: &Axis, unit: Unit, title: &str, top: f64, foot: f64) {
        self.line("axis", axis.left, foot, axis.right, foot);
        for tick in axis.ticks() {
            let at = axis.at(tick);
            self.line("rail", at, top, at, foot);
            self.text("tick", at, foot + 15.0, &with_unit(tick, unit));
        }
        self.text("title", f64::midpoint(axis.left, axis.right), foot + 33.0, title);
    }

    fn mark(&mut self, axis: &Axis, mark: Option<&Mark>, top: f64, foot: f64) {
        let Some(mark) = mark else { return };
        let at = axis.at(mark.value);
        self.line("bound", at, top, at, foot);
        // On the side with more room.
        let class = if at > f64::midpoint(axis.left, axis.right) {
            "boundtext end"
        } else {
            "boundtext start"
        };
        self.text(class, at, top - 6.0, &mark.name);
    }
}

/// Formats three digits, with a suitable unit.
pub(super) fn with_unit(value: f64, unit: Unit) -> String {
    let micros = match unit {
        Unit::Plain if value >= 1e6 => return format!("{} M", short(value / 1e6)),
        Unit::Plain if value >= 1e4 => return format!("{} k", short(value / 1e3)),
        Unit::Plain => return short(value),
        Unit::Micros => value,
        Unit::Millis => value * 1e3,
    };
    match micros.abs() {
        0.0 => "0".to_owned(),
        ..1.0 => format!("{} ns", short(micros * 1e3)),
        1.0..1e3 => format!("{} µs", short(micros)),
        1e3..1e6 => format!("{} ms", short(micros / 1e3)),
        _ => format!("{} s", short(micros / 1e6)),
    }
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}
