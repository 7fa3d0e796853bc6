//! Pictures, as SVG that stands in the page.

use std::fmt::Write as _;
use std::time::Duration;

use super::{nanos, short};
use crate::scene::{MarkKind, Scene, SpanKind};
use crate::times::{Spread, start_of};

const WIDTH: f64 = 860.0;

/// So that the outermost labels fit.
const EDGE: f64 = 30.0;

/// A distribution on a logarithmic axis, with a bound in it if there is one.
#[allow(clippy::cast_precision_loss)]
pub(super) fn histogram(spread: &Spread, bound: Option<Duration>) -> String {
    const HEIGHT: f64 = 150.0;
    const FLOOR: f64 = 120.0;
    let (Some((&first, _)), Some((&last, _))) =
        (spread.steps.first_key_value(), spread.steps.last_key_value())
    else {
        return "<p class=\"none\">None.</p>".to_owned();
    };
    let limit = bound.filter(|bound| !bound.is_zero()).map(|bound| bound.as_nanos() as f64);
    let limit = limit.map(|limit| limit.log10() * 10.0);
    // Whole powers of ten.
    let from = f64::from(first.div_euclid(10) * 10);
    let to = f64::from((last + 1).div_ceil(10) * 10).max(limit.map_or(0.0, |l| l.ceil() + 1.0));
    let x = |step: f64| EDGE + (step - from) / (to - from) * (WIDTH - 2.0 * EDGE);
    let most = spread.steps.values().copied().max().unwrap_or(1) as f64;
    let mut svg = open(HEIGHT, "distribution");
    for (&step, &count) in &spread.steps {
        let (left, right) = (x(f64::from(step)), x(f64::from(step) + 1.0));
        let height = (count as f64 / most * (FLOOR - 20.0)).max(1.5);
        let _ = write!(
            svg,
            "<rect class=\"bar\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\"><title>{} to {}: {count}</title></rect>",
            FLOOR - height,
            (right - left - 1.0).max(1.0),
            nanos(start_of(step)),
            nanos(start_of(step + 1)),
        );
    }
    let _ = write!(
        svg,
        "<line class=\"axis\" x1=\"{EDGE}\" x2=\"{}\" y1=\"{FLOOR}\" y2=\"{FLOOR}\"/>",
        WIDTH - EDGE
    );
    let mut power = from;
    while power <= to {
        let at = x(power);
        let label = round(10_f64.powf(power / 10.0));
        let _ = write!(
            svg,
            "<line class=\"axis\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{FLOOR}\" y2=\"{}\"/><text class=\"tick\" x=\"{at:.1}\" y=\"{}\">{label}</text>",
            FLOOR + 5.0,
            FLOOR + 20.0,
        );
        power += 10.0;
    }
    if let Some(limit) = limit {
        let at = x(limit);
        let _ = write!(
            svg,
            "<line class=\"bound\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"14\" y2=\"{FLOOR}\"/><text class=\"boundtext\" x=\"{:.1}\" y=\"12\">bound {}</text>",
            at,
            short(bound.unwrap_or_default()),
        );
    }
    svg + "</svg>"
}

/// Who waited for a lock, held it, and was hit.
#[allow(clippy::cast_precision_loss)]
pub(super) fn timeline(scene: &Scene) -> String {
    const ROW: f64 = 26.0;
    const LABEL: f64 = 90.0;
    let rows = scene.rows.len() as f64;
    let height = rows * ROW + 40.0;
    let length = scene.length.max(1) as f64;
    let x = |at: u64| LABEL + (at as f64 / length).min(1.0) * (WIDTH - LABEL - 20.0);
    let mut svg = open(height, "timeline");
    for (index, row) in scene.rows.iter().enumerate() {
        let top = index as f64 * ROW + 6.0;
        let _ = write!(
            svg,
            "<text class=\"who\" x=\"4\" y=\"{:.1}\">{}</text><line class=\"rail\" x1=\"{LABEL}\" x2=\"{}\" y1=\"{:.1}\" y2=\"{:.1}\"/>",
            top + 13.0,
            row.name,
            WIDTH - 20.0,
            top + 9.0,
            top + 9.0,
        );
        for span in &row.spans {
            let (class, y, h) = match span.what {
                SpanKind::Fault => ("fault", top - 3.0, 24.0),
                SpanKind::Waits => ("waits", top + 6.0, 6.0),
                SpanKind::Holds => ("holds", top + 1.0, 16.0),
            };
            let (left, right) = (x(span.from), x(span.until));
            let _ = write!(
                svg,
                "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{h}\"><title>{class}: {} for {}</title></rect>",
                (right - left).max(1.5),
                nanos(span.from),
                nanos(span.until - span.from),
            );
        }
        for mark in &row.marks {
            let at = x(mark.at);
            let (class, sign, what) = match mark.what {
                MarkKind::Lost => ("lost", "!", "told of its loss"),
                MarkKind::Write => ("write", "•", "a write passes the fence"),
                MarkKind::Refused => ("refused", "✗", "refused by the fence"),
            };
            let _ = write!(
                svg,
                "<text class=\"mark {class}\" x=\"{at:.1}\" y=\"{:.1}\">{sign}<title>{what} at {} {}</title></text>",
                top + 14.0,
                nanos(mark.at),
                mark.text,
            );
        }
    }
    let foot = rows * ROW + 12.0;
    let step =
        [1.0, 2.0, 5.0, 10.0].map(|part| part * 10_f64.powf((length / 10.0).log10().floor()));
    let step = step.into_iter().find(|step| length / step <= 10.0).unwrap_or(length);
    let mut at = 0.0;
    while at <= length {
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x(at as u64),
            foot + 14.0,
            round(at),
        );
        at += step;
    }
    svg + "</svg>"
}

/// A round number of nanoseconds.
fn round(nanos: f64) -> String {
    let (value, unit) = match nanos {
        n if n < 0.5 => return "0".to_owned(),
        n if n < 999.5 => (n, "ns"),
        n if n < 999.5e3 => (n / 1e3, "µs"),
        n if n < 999.5e6 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    if value.fract().abs() < 0.05 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

fn open(height: f64, what: &str) -> String {
    format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{what}\">")
}
