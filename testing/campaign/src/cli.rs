//! The command line.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use lock_core::clock::Moment;
use lock_history::Line;

use crate::bugs::{self, Finding, Hunt};
use crate::kind::Kind;
use crate::outcome::{Outcome, REMOTE, Settings};
use crate::run::{self, Run};
use crate::sites::{self, BackendSpec};
use crate::verdict::VERDICT;
use crate::{report, worker};

/// Runs lock clients and servers under faults, and judges the recorded history.
///
/// Exit status: 0 if all results are clean, 1 if one is not, 2 if the campaign itself failed.
#[derive(Parser)]
#[command(name = "lock-campaign", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run seeds on a backend, except seeds with a result by the current verdict
    Run(RunArgs),
    /// Write a page of all results in a directory
    Report {
        /// Directory of the results
        directory: PathBuf,
        /// Markdown file to write
        #[arg(long, value_name = "FILE", default_value = "campaign.md")]
        markdown: PathBuf,
    },
    /// Plant known bugs, and check that each is detected
    Bugs(Hunt),
    /// Run a client of a campaign
    #[command(hide = true)]
    Client { backend: String, duty: String },
}

#[derive(Args)]
struct RunArgs {
    /// Name of a backend, or URL of a server that runs already
    backend: String,
    /// First seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Faults in each run
    #[arg(long, default_value_t = Settings::default().faults)]
    faults: u32,
    /// Grants between two faults of a client, or of the servers
    #[arg(long, default_value_t = Settings::default().grants)]
    grants: u64,
    /// Run the following seeds for this time, such as 90s, 10m or 1h (one seed by default)
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    lasts: Option<Duration>,
    /// Client processes in each run
    #[arg(long, default_value_t = Settings::default().clients)]
    clients: usize,
    /// Tasks in each client
    #[arg(long, default_value_t = Settings::default().tasks)]
    tasks: usize,
    /// Number of locks, if not the backend's default (fewer locks are contended more)
    #[arg(long)]
    locks: Option<usize>,
    /// Inject only faults of this kind, such as leader-replaced (may be repeated)
    #[arg(long, value_name = "KIND", value_parser = kind)]
    only: Vec<Kind>,
    /// Plant a bug in all clients
    #[arg(long)]
    bug: Option<String>,
    /// Directory of the results, and of histories of runs that are not clean
    #[arg(long, value_name = "DIR", default_value = "campaign")]
    out: PathBuf,
    /// Description of the tested code for the results, such as its commit
    #[arg(long)]
    code: Option<String>,
    /// Allow ten times the usual time for typical hand-offs, because other programs load the
    /// machine
    #[arg(long)]
    busy: bool,
    /// Keep histories of clean runs as well
    #[arg(long)]
    keep: bool,
}

/// Runs the program `lock-campaign` with these backends.
#[must_use]
pub fn main(targets: &[BackendSpec]) -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(args) => run(targets, &args),
        Command::Report { directory, markdown } => write_report(&directory, &markdown),
        Command::Bugs(hunt) => {
            bugs::hunt(&hunt, |name| choose(targets, name).map(|(target, _)| target), runtime)
        }
        Command::Client { backend, duty } => return client(targets, &backend, &duty),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("lock-campaign: {error}");
            ExitCode::from(2)
        }
    }
}

fn client(targets: &[BackendSpec], backend: &str, duty: &str) -> ExitCode {
    let connect = targets.iter().find(|target| target.name == backend);
    let connect = connect.map_or(sites::connect as _, |target| target.connect);
    match serde_json::from_str(duty) {
        Ok(duty) => {
            worker::process(duty, connect);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("lock-campaign: the settings of a client are invalid: {error}");
            ExitCode::from(2)
        }
    }
}

/// Parses a duration such as `90s`, `10m` or `1h`.
fn duration(text: &str) -> Result<Duration, String> {
    let unit = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let number: u64 = number.parse().map_err(|_| "write 90s, 10m or 1h")?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err("write 90s, 10m or 1h".into()),
    };
    Ok(Duration::from_secs(number * seconds))
}

fn kind(name: &str) -> Result<Kind, String> {
    let found = Kind::ALL.into_iter().find(|kind| kind.name() == name);
    found.ok_or_else(|| "there is no such kind of fault".to_owned())
}

/// Returns a runtime with several threads, since proxies and calls to servers block.
fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build()
}

fn run(targets: &[BackendSpec], args: &RunArgs) -> io::Result<bool> {
    let settings = Settings {
        faults: args.faults,
        grants: args.grants,
        clients: args.clients,
        tasks: args.tasks,
        locks: args.locks,
        only: args.only.clone(),
        bug: args.bug.clone(),
        busy: args.busy,
    };
    let (target, url) = choose(targets, &args.backend)?;
    let end = Moment::now() + args.lasts.unwrap_or_default();
    let mut clean = true;
    for seed in args.seed.. {
        let stored = Outcome::find(&args.out, target.name, seed)?;
        match stored.filter(|stored| stored.verdict == VERDICT) {
            Some(outcome) if outcome.settings == settings => {
                println!("already stored: {}", report::line(&outcome));
                clean &= outcome.is_clean();
            }
            // The result may be published.
            Some(_) if args.lasts.is_some() => {
                println!("skipped: seed {seed} has a result of other settings");
            }
            Some(_) => {
                let (out, name) = (args.out.display(), target.name);
                return Err(io::Error::other(format!(
                    "{out} has a result of {name} with seed {seed} and other settings: choose another --seed or --out, or delete it"
                )));
            }
            None => clean &= run_seed(&target, url, seed, &settings, args)?,
        }
        if end.has_passed() {
            break;
        }
    }
    Ok(clean)
}

/// Returns a backend by its name, or one for the servers of a URL.
fn choose<'a>(
    targets: &[BackendSpec],
    text: &'a str,
) -> io::Result<(BackendSpec, Option<&'a str>)> {
    if let Some(target) = targets.iter().find(|target| target.name == text) {
        return Ok((*target, None));
    }
    let names: Vec<_> = targets.iter().map(|target| target.name).collect();
    let unknown = format!("no backend {text:?}; give a URL or one of {}", names.join(", "));
    if !text.contains("://") {
        return Err(io::Error::other(unknown));
    }
    let start = || unreachable!("a remote site is made from its URL");
    // The names of targets are static.
    let name = String::leak(remote_name(text));
    Ok((BackendSpec { name, start, connect: sites::connect }, Some(text)))
}

/// Returns a name for the results of the servers of a URL. It has a hash (FNV-1a) of the URL,
/// without the user and the password before the `@`.
fn remote_name(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let at = rest[..end].rfind('@').map_or(0, |at| at + 1);
    let bytes = scheme.bytes().chain(rest[at..].bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{REMOTE}{hash:016x}")
}

fn run_seed(
    target: &BackendSpec,
    url: Option<&str>,
    seed: u64,
    settings: &Settings,
    args: &RunArgs,
) -> io::Result<bool> {
    let done = runtime()?.block_on(async {
        match url {
            None => run::run(target, seed, settings).await,
            Some(url) => {
                let site = sites::remote(url).map_err(io::Error::other)?;
                run::on(Arc::from(site), target, seed, settings).await
            }
        }
    });
    let Run { mut outcome, lines } = done?;
    outcome.code.clone_from(&args.code);
    println!("{}", report::line(&outcome));
    for problem in outcome.failures.iter().chain(&outcome.violations) {
        println!("  {problem}");
    }
    if args.keep || !outcome.is_clean() {
        let histories = args.out.join(target.name);
        std::fs::create_dir_all(&histories)?;
        let path = histories.join(format!("{seed}.jsonl"));
        write_history(&path, &lines)?;
        println!("  history: {}", path.display());
    }
    outcome.store(&args.out)?;
    Ok(outcome.is_clean())
}

fn write_history(path: &Path, lines: &[Line]) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let mut file = BufWriter::new(File::create(path)?);
    for line in lines {
        file.write_all(line.to_json().as_bytes())?;
    }
    file.flush()
}

fn write_report(directory: &Path, markdown: &Path) -> io::Result<bool> {
    let outcomes = Outcome::load_all(directory)?;
    let findings = Finding::load_all(directory)?;
    std::fs::write(markdown, report::markdown(&outcomes, &findings))?;
    println!("{}", markdown.display());
    let all_seen = findings.iter().all(|finding| finding.seen.is_some());
    Ok(all_seen && outcomes.iter().all(Outcome::is_clean))
}

#[cfg(test)]
mod tests {
    use super::{REMOTE, remote_name};

    #[test]
    fn remote_names_differ_by_server_and_hide_it() {
        let name = remote_name("redis://h:1/0");
        assert_eq!(name, remote_name("redis://user:secret@h:1/0"), "passwords may change");
        for other in ["redis://h:2/0", "redis://h:1/1", "memcache://h:1/0", "redis://h:1/0?a=b"] {
            assert_ne!(name, remote_name(other), "{other}");
        }
        let digits = name.strip_prefix(REMOTE).expect("a name has the prefix");
        assert!(digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
