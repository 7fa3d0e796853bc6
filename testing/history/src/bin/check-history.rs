//! `check-history`: judges histories of locks that were recorded before.

use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use lock_history::{History, Report, check};

/// Judge recorded histories of locks.
///
/// Exit status: 0 if all are legal, 1 if one is not, 2 if one cannot be read.
#[derive(Parser)]
#[command(name = "check-history", version, max_term_width = 100)]
struct Given {
    /// Print one JSON object for each file, and nothing else.
    #[arg(long)]
    json: bool,
    /// Histories, one run in each: JSON lines.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let given = Given::parse();
    let mut worst = 0;
    for file in &given.files {
        let status = match judge(file) {
            Ok(report) => {
                let told = if given.json { tell_json(file, &report) } else { tell(file, &report) };
                if told.is_err() {
                    return ExitCode::from(2); // nobody reads on
                }
                u8::from(!report.is_legal())
            }
            Err(why) => {
                eprintln!("check-history: {}: {why}", file.display());
                2
            }
        };
        worst = worst.max(status);
    }
    ExitCode::from(worst)
}

fn judge(file: &Path) -> Result<Report, String> {
    let opened = File::open(file).map_err(|error| error.to_string())?;
    let history = History::read(BufReader::new(opened)).map_err(|error| error.to_string())?;
    Ok(check(&history))
}

fn tell(file: &Path, report: &Report) -> io::Result<()> {
    writeln!(io::stdout(), "{}:\n{report}\n", file.display())
}

fn tell_json(file: &Path, report: &Report) -> io::Result<()> {
    let object = serde_json::json!({
        "file": file.display().to_string(),
        "legal": report.is_legal(),
        "report": report,
    });
    writeln!(io::stdout(), "{object}")
}
