//! `lockctl doctor`: the guarantees of the servers of a backend, and their limits.

use std::cell::Cell;
use std::pin::pin;

use lock_any::Label;
use lock_any::diagnosis::{Finding, Severity};
use serde::Serialize;

use crate::cli::Doctor;
use crate::connect;
use crate::exit::{Exit, Failure, one_line};
use crate::output::{json, print};
use crate::signals::{ENDING, Signals};

/// The width of the text, which fits a terminal.
const WIDTH: usize = 80;
/// Below the first word of a finding.
const INDENT: &str = "         ";

pub(crate) async fn doctor(url: &str, args: &Doctor) -> Result<Exit, Failure> {
    refuse_memory(url).await?;
    let findings = diagnose(url).await?;
    let shown: Result<String, Failure> = match args.json {
        true => findings.iter().map(|finding| json(&FindingReport::of(finding))).collect(),
        false => Ok(text(&findings)),
    };
    print(&shown?)?;
    Ok(exit_of(&findings))
}

/// Checks the servers. After a signal, the lock that is measured is removed before lockctl ends. A
/// second signal ends it at once.
async fn diagnose(url: &str) -> Result<Vec<Finding>, Failure> {
    let mut signals = Signals::catch(ENDING)?;
    let (has_written, signalled) = (Cell::new(false), Cell::new(None));
    let is_wanted = || {
        has_written.set(true);
        signalled.get().is_none()
    };
    let mut diagnosing = pin!(lock_any::diagnose_while(url, is_wanted));
    loop {
        tokio::select! {
            findings = &mut diagnosing => {
                return match signalled.get() {
                    Some(signal) => Err(Failure::signalled(signal)),
                    None => Ok(findings?),
                };
            }
            signal = signals.next() => {
                if !has_written.get() || signalled.replace(Some(signal)).is_some() {
                    return Err(Failure::signalled(signal));
                }
            }
        }
    }
}

/// Refuses locks that only this process would share, as other verbs do.
async fn refuse_memory(url: &str) -> Result<(), Failure> {
    let scheme = url.split(':').next().unwrap_or_default();
    if !scheme.eq_ignore_ascii_case("memory") {
        return Ok(());
    }
    let locks = connect::connect_as(Label::host_and_pid(), url).await?;
    connect::require(&locks, "check the servers", &[])
}

fn exit_of(findings: &[Finding]) -> Exit {
    match findings.iter().map(|finding| finding.severity).max() {
        Some(Severity::Failure) => Exit::UNAVAILABLE,
        Some(Severity::Warning) => Exit::NOTHING,
        _ => Exit::SUCCESS,
    }
}

/// The JSON of a finding.
#[derive(Serialize)]
struct FindingReport<'a> {
    severity: &'static str,
    server: Option<&'a str>,
    check: &'static str,
    text: &'a str,
    remedy: Option<&'a str>,
}

impl<'a> FindingReport<'a> {
    fn of(finding: &'a Finding) -> Self {
        Self {
            severity: finding.severity.as_str(),
            server: finding.server.as_deref(),
            check: finding.check,
            text: &finding.text,
            remedy: finding.remedy.as_deref(),
        }
    }
}

/// Returns the findings as text for people, below the names of their servers, and how many there
/// are.
fn text(findings: &[Finding]) -> String {
    let mut lines = String::new();
    let mut last: Option<&str> = None;
    for finding in findings {
        let server = finding.server.as_deref();
        if server != last {
            lines += if lines.is_empty() { "" } else { "\n" };
            lines += &format!("{}\n", server.map_or("all servers".into(), one_line));
            last = server;
        }
        lines += &text_of(finding);
    }
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let [failures, warnings, ok] = [Severity::Failure, Severity::Warning, Severity::Ok].map(count);
    lines + &format!("\nfailures: {failures}, warnings: {warnings}, ok: {ok}\n")
}

/// Returns a finding in lines of limited width.
fn text_of(finding: &Finding) -> String {
    // Parts of it come from the server, and may contain terminal escapes.
    let found = format!("{}: {}", finding.check, one_line(&finding.text));
    let mut lines = wrap(&format!("{:<7}  ", finding.severity.as_str()), &found);
    if let Some(remedy) = &finding.remedy {
        lines += &wrap(&format!("{INDENT}remedy: "), &one_line(remedy));
    }
    lines
}

/// Returns `text` in lines of limited width, the first one behind `begin`. A longer word has a line
/// of its own: it may be a command to copy.
fn wrap(begin: &str, text: &str) -> String {
    let (mut lines, mut line) = (String::new(), begin.to_owned());
    let mut is_empty = true;
    for word in text.split(' ') {
        let width = line.chars().count() + usize::from(!is_empty) + word.chars().count();
        if !is_empty && width > WIDTH {
            lines += &line;
            lines.push('\n');
            line = INDENT.to_owned();
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line += word;
        is_empty = false;
    }
    lines + &line + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_readable_in_80_columns() {
        let long = "maxmemory-policy is allkeys-lru: ".repeat(4);
        let finding = Finding::warning("eviction", format!("{long}\x1b[2J"))
            .remedy("set maxmemory-policy to noeviction");
        let text = text_of(&finding);
        assert!(text.starts_with("warning  eviction: maxmemory"), "{text}");
        assert!(
            text.ends_with("\n         remedy: set maxmemory-policy to noeviction\n"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert!(text.lines().skip(1).all(|line| line.starts_with(INDENT)), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
        assert_eq!(text.matches("maxmemory-policy").count(), 5, "{text}");
    }

    #[test]
    fn findings_stand_below_their_servers() {
        let ok = || Finding::ok("a", "b");
        let findings = [ok(), ok().of_server("x\x1b"), ok().of_server("x\x1b"), ok()];
        let line = "ok       a: b\n";
        let shown = format!(
            "{line}\nx?\n{line}{line}\nall servers\n{line}\nfailures: 0, warnings: 0, ok: 4\n"
        );
        assert_eq!(text(&findings), shown);
    }

    #[test]
    fn a_long_word_has_a_line_of_its_own() {
        let word = "x".repeat(100);
        assert_eq!(
            wrap("ok       ", &format!("a {word} b")),
            format!("ok       a\n{INDENT}{word}\n{INDENT}b\n")
        );
    }

    #[test]
    fn the_worst_finding_decides_the_exit_status() {
        let (ok, warning) = (Finding::ok("a", "b"), Finding::warning("a", "b"));
        let failure = Finding::failure("a", "b");
        assert_eq!(exit_of(&[]), Exit::SUCCESS);
        assert_eq!(exit_of(std::slice::from_ref(&ok)), Exit::SUCCESS);
        assert_eq!(exit_of(&[ok.clone(), warning.clone()]), Exit::NOTHING);
        assert_eq!(exit_of(&[failure, ok, warning]), Exit::UNAVAILABLE);
    }
}
