//! The rules hold for this workspace.

use style::{Finding, Project};

fn none(findings: &[Finding]) {
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{} findings:\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn structure() {
    none(&style::structure(&Project::this()));
}

#[test]
fn names() {
    none(&style::names(&Project::this()));
}

#[test]
fn backends() {
    none(&style::backends(&Project::this()));
}

#[test]
fn prose() {
    none(&style::prose(&Project::this()));
}

#[test]
fn links() {
    none(&style::links(&Project::this()));
}
