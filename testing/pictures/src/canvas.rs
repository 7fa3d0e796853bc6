//! The text of an SVG file.

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#59636e}\
    .strong{font-weight:600}.small{font-size:12px}.end{text-anchor:end}.middle{text-anchor:middle}\
    .mono{font-family:ui-monospace,'DejaVu Sans Mono',monospace;white-space:pre}\
    .good{fill:#1f6feb}.bad{fill:#bc4c00}.next{fill:#768390}.frame{fill:#8b949e;fill-opacity:.1}\
    line,.frame{stroke:#8b949e;stroke-opacity:.35}.axis{stroke-opacity:1}\
    @media(prefers-color-scheme:dark){text{fill:#9aa4ae}.good{fill:#4493f8}.bad{fill:#e0793f}}";
pub(crate) const WIDTH: f64 = 860.0;

/// Returns a count with a narrow space between each three digits.
pub(crate) fn grouped(count: f64) -> String {
    let digits = format!("{count:.0}");
    let group = |(index, digit): (usize, char)| {
        let space = index > 0 && (digits.len() - index).is_multiple_of(3);
        space.then_some('\u{202f}').into_iter().chain([digit])
    };
    digits.chars().enumerate().flat_map(group).collect()
}

#[derive(Default)]
pub(crate) struct Canvas(pub(crate) String);

impl Canvas {
    pub(crate) fn text(&mut self, class: &str, x: f64, y: f64, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.0 += &format!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>\n");
    }

    pub(crate) fn rect(&mut self, class: &str, x: f64, y: f64, width: f64, height: f64) {
        self.0 += &format!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>\n"
        );
    }

    pub(crate) fn line(&mut self, class: &str, x1: f64, y1: f64, x2: f64, y2: f64) {
        self.0 += &format!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>\n"
        );
    }

    pub(crate) fn close(self, height: f64, title: &str) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" \
             height=\"{height:.0}\" role=\"img\"><title>{title}</title><style>{STYLE}</style>\n{}</svg>\n",
            self.0
        )
    }
}
