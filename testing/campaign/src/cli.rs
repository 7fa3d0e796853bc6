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
use crate::sites::{self, Target};
use crate::verdict::VERDICT;
use crate::{report, worker};

/// Clients, servers and faults; what came of it, recorded and judged.
///
/// Exit status: 0 if all is clean, 1 if something is not, 2 if the campaign itself failed.
#[derive(Parser)]
#[command(name = "lock-campaign", version, max_term_width = 100)]
struct Given {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run seeds on a backend; those whose results are there already, by today's verdict, are left
    /// as they are
    Run(RunArgs),
    /// Make a page of all results in a directory
    Report {
        /// Where the results are
        directory: PathBuf,
        /// Where the summary goes, in Markdown
        #[arg(long, value_name = "FILE", default_value = "campaign.md")]
        markdown: PathBuf,
    },
    /// Plant old bugs, and see whether each is seen
    Bugs(BugsArgs),
    /// A client; the campaign starts them
    #[command(hide = true)]
    Client { backend: String, duty: String },
}

#[derive(Args)]
struct BugsArgs {
    /// Which ones; all of them unless told otherwise
    #[arg(value_name = "BUG")]
    bugs: Vec<String>,
    /// By the campaign on this backend, whoever usually has to see them
    #[arg(long = "on", value_name = "BACKEND")]
    backend: Option<String>,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many faults each has to get through
    #[arg(long, default_value_t = Settings::default().faults)]
    faults: u32,
    /// Grants between two of them: with fewer, hardly a call is undisturbed
    #[arg(long, default_value_t = 60)]
    grants: u64,
    /// So many seeds are tried before one counts as not seen
    #[arg(long, default_value_t = 5)]
    seeds: u64,
    /// Where the results go, a line for each; those that are there already are left out, unless an
    /// older verdict saw them
    #[arg(long, value_name = "DIR", default_value = "campaign")]
    out: PathBuf,
    /// Looks for those as well that are there already: what they say is of the code of then
    #[arg(long)]
    anew: bool,
    /// What results say of the code that ran, such as its commit
    #[arg(long)]
    code: Option<String>,
}

#[derive(Args)]
struct RunArgs {
    /// A backend's name, or the URL of a server that runs already
    backend: String,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Faults in each run
    #[arg(long, default_value_t = Settings::default().faults)]
    faults: u32,
    /// Grants between two faults of a client, or of the servers
    #[arg(long, default_value_t = Settings::default().grants)]
    grants: u64,
    /// Go on with the seeds that follow for so long, like 90s, 10m or 1h; one seed otherwise
    #[arg(long = "for", value_name = "DURATION", value_parser = duration)]
    lasts: Option<Duration>,
    /// Client processes in each run
    #[arg(long, default_value_t = Settings::default().clients)]
    clients: usize,
    /// Tasks in each client
    #[arg(long, default_value_t = Settings::default().tasks)]
    tasks: usize,
    /// How many locks, if not as many as are usual: fewer are contended more
    #[arg(long)]
    locks: Option<usize>,
    /// Only faults of this kind, such as leader-replaced; may be given several times
    #[arg(long, value_name = "KIND", value_parser = kind)]
    only: Vec<Kind>,
    /// Plant a bug in all clients
    #[arg(long)]
    bug: Option<String>,
    /// Where results go, and histories of runs that are not clean
    #[arg(long, value_name = "DIR", default_value = "campaign")]
    out: PathBuf,
    /// What results say of the code that ran, such as its commit
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

/// The whole program, on these backends.
#[must_use]
pub fn main(targets: &[Target]) -> ExitCode {
    let done = match Given::parse().command {
        Command::Run(args) => run(targets, &args),
        Command::Report { directory, markdown } => make_report(&directory, &markdown),
        Command::Bugs(args) => hunt(targets, &args),
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

fn client(targets: &[Target], backend: &str, duty: &str) -> ExitCode {
    let connect = targets.iter().find(|target| target.name == backend);
    let connect = connect.map_or(sites::connect as _, |target| target.connect);
    match serde_json::from_str(duty) {
        Ok(duty) => {
            worker::process(duty, connect);
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("lock-campaign: a client that was told nonsense: {error}");
            ExitCode::from(2)
        }
    }
}

/// `90s`, `10m`, `1h`
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

/// Proxies and servers' lanes need threads that may block.
fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build()
}

fn run(targets: &[Target], args: &RunArgs) -> io::Result<bool> {
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
    let (target, url) = chosen(targets, &args.backend)?;
    let end = Moment::now() + args.lasts.unwrap_or_default();
    let mut clean = true;
    for seed in args.seed.. {
        let there = Outcome::of(&args.out, target.name, seed)?;
        match there.filter(|there| there.verdict == VERDICT) {
            Some(outcome) if outcome.settings == settings => {
                println!("there already: {}", report::line(&outcome));
                clean &= outcome.is_clean();
            }
            // Somebody has published it, perhaps.
            Some(_) if args.lasts.is_some() => {
                println!("left as it is: seed {seed}, of other settings");
            }
            Some(_) => {
                let (out, name) = (args.out.display(), target.name);
                return Err(io::Error::other(format!(
                    "{out} has a result of {name} with seed {seed}, and of other settings: choose another --seed or --out, or delete it"
                )));
            }
            None => clean &= one(&target, url, seed, &settings, args)?,
        }
        if end.has_passed() {
            break;
        }
    }
    Ok(clean)
}

/// A backend by name, or by URL that of servers which run already.
fn chosen<'a>(targets: &[Target], text: &'a str) -> io::Result<(Target, Option<&'a str>)> {
    if let Some(target) = targets.iter().find(|target| target.name == text) {
        return Ok((*target, None));
    }
    let names: Vec<_> = targets.iter().map(|target| target.name).collect();
    let unknown = format!("no backend {text:?}; there are {}, and URLs", names.join(", "));
    if !text.contains("://") {
        return Err(io::Error::other(unknown));
    }
    let start = || unreachable!("a remote site is made from its URL");
    // For as long as the program runs, like the names of the others.
    let name = String::leak(remote_name(text));
    Ok((Target { name, start, connect: sites::connect }, Some(text)))
}

/// Results of different servers are kept apart. URLs may hold passwords: what stands before the `@`
/// is left out, and the rest is hashed (FNV-1a).
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

fn one(
    target: &Target,
    url: Option<&str>,
    seed: u64,
    settings: &Settings,
    args: &RunArgs,
) -> io::Result<bool> {
    let ended = runtime()?.block_on(async {
        match url {
            None => run::run(target, seed, settings).await,
            Some(url) => {
                let site = sites::remote(url).map_err(io::Error::other)?;
                run::on(Arc::from(site), target, seed, settings).await
            }
        }
    });
    let Run { mut outcome, lines } = ended?;
    outcome.code.clone_from(&args.code);
    println!("{}", report::line(&outcome));
    for what in outcome.failures.iter().chain(&outcome.violations) {
        println!("  {what}");
    }
    if args.keep || !outcome.is_clean() {
        let histories = args.out.join(target.name);
        std::fs::create_dir_all(&histories)?;
        let path = histories.join(format!("{seed}.jsonl"));
        keep_history(&path, &lines)?;
        println!("  its history: {}", path.display());
    }
    outcome.keep(&args.out)?;
    Ok(outcome.is_clean())
}

fn keep_history(path: &Path, lines: &[Line]) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let mut file = BufWriter::new(File::create(path)?);
    for line in lines {
        file.write_all(line.to_json().as_bytes())?;
    }
    file.flush()
}

fn make_report(directory: &Path, markdown: &Path) -> io::Result<bool> {
    let outcomes = Outcome::all(directory)?;
    let findings = Finding::all(directory)?;
    std::fs::write(markdown, report::markdown(&outcomes, &findings))?;
    println!("{}", markdown.display());
    let all_seen = findings.iter().all(|finding| finding.seen.is_some());
    Ok(all_seen && outcomes.iter().all(Outcome::is_clean))
}

fn hunt(targets: &[Target], args: &BugsArgs) -> io::Result<bool> {
    let hunt = Hunt {
        names: args.bugs.clone(),
        on: args.backend.clone(),
        settings: Settings { faults: args.faults, grants: args.grants, ..Settings::default() },
        seeds: args.seed..args.seed + args.seeds,
        out: args.out.clone(),
        anew: args.anew,
        code: args.code.clone(),
    };
    bugs::hunt(&hunt, |name| chosen(targets, name).map(|(target, _)| target), runtime)
}

#[cfg(test)]
mod tests {
    use super::remote_name;

    #[test]
    fn results_of_different_servers_are_kept_apart_and_name_none() {
        let name = remote_name("redis://h:1/0");
        assert_eq!(name, remote_name("redis://user:secret@h:1/0"), "passwords may change");
        for other in ["redis://h:2/0", "redis://h:1/1", "memcache://h:1/0", "redis://h:1/0?a=b"] {
            assert_ne!(name, remote_name(other), "{other}");
        }
        let digits = name.strip_prefix("remote-").expect("it says so");
        assert!(digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
