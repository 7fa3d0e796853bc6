//! `lock-bench report`: recorded runs, for readers.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;

use super::goals::GoalsFile;
use super::run::Run;
use super::{markdown, page};

#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// Files that `lock-bench run --json` has written, in the order in which they are shown. The
    /// workloads of a later run of the same backend replace those of an earlier one
    #[arg(required = true)]
    runs: Vec<PathBuf>,
    /// Writes one page with pictures
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Writes the same as tables
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Writes all runs into one file, which can be reported again
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes each run into a file named for its backend, without rounds and shapes. The files are
    /// small enough to be stored, and can be reported again
    #[arg(long, value_name = "DIRECTORY")]
    results: Option<PathBuf>,
    /// Replaces the part of this document between `<!-- figures: generated -->` and `<!-- end of
    /// figures -->`
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
    /// Records the measured values in these goals files, each named for its backend: redis.toml,
    /// quorum-3.toml
    #[arg(long, value_name = "FILE", num_args = 1..)]
    goals: Vec<PathBuf>,
}

pub(crate) fn main(args: &ReportArgs) -> Result<(), String> {
    let files = [&args.html, &args.markdown, &args.json, &args.results, &args.document];
    if files.iter().all(|file| file.is_none()) && args.goals.is_empty() {
        return Err(
            "say what to write: --html, --markdown, --json, --results, --document or --goals"
                .into(),
        );
    }
    let mut runs = Vec::new();
    for file in &args.runs {
        runs.extend(Run::read(file)?);
    }
    let (runs, lost) = Run::merged(runs)?;
    lost.iter().for_each(|figures| eprintln!("lock-bench report: {figures}"));
    // Before anything is written: half a report would look like a whole one.
    let goals: Vec<GoalsFile> =
        args.goals.iter().map(|file| GoalsFile::of(file, &runs)).collect::<Result<_, _>>()?;
    if let Some(file) = &args.html {
        write(file, &page::html(&runs))?;
    }
    if let Some(file) = &args.markdown {
        write(file, &markdown::markdown(&runs, &goals))?;
    }
    if let Some(file) = &args.json {
        write(file, &runs.iter().map(Run::lines).collect::<String>())?;
    }
    if let Some(directory) = &args.results {
        let at = directory.display();
        fs::create_dir_all(directory).map_err(|e| format!("{at}: {e}"))?;
        for run in &runs {
            write(&directory.join(format!("{}.json", run.backend())), &run.compact())?;
        }
    }
    if let Some(file) = &args.document {
        let document = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let document = with_figures(&document, &markdown::figures(&runs, &goals));
        write(file, &document.ok_or_else(|| format!("{} has no figures", file.display()))?)?;
    }
    for GoalsFile { path, text, remarks, .. } in &goals {
        write(path, text)?;
        remarks.iter().for_each(|remark| eprintln!("{}: {remark}", path.display()));
    }
    Ok(())
}

fn with_figures(document: &str, figures: &str) -> Option<String> {
    const OPEN: &str = "<!-- figures: generated -->\n";
    const CLOSE: &str = "<!-- end of figures -->";

    let (before, rest) = document.split_once(OPEN)?;
    let (_, after) = rest.split_once(CLOSE)?;
    Some(format!("{before}{OPEN}{figures}{CLOSE}{after}"))
}

fn write(file: &Path, text: &str) -> Result<(), String> {
    fs::write(file, text).map_err(|e| format!("{}: {e}", file.display()))
}
