//! Prints findings about the shape and the prose of this workspace.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use style::{Project, backends, links, names, prose, report, structure};

/// Checks imports, names, files, sentences and links, and prints each finding with its remedy.
#[derive(Parser)]
#[command(name = "style")]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Prints how the prose of each area reads, and the worst places of one.
    Prose {
        /// A package, or a path in the repository.
        path: Option<String>,
    },
}

fn main() -> ExitCode {
    let project = Project::this();
    if let Some(Command::Prose { path }) = Arguments::parse().command {
        println!("{}", report(&project, path.as_deref()));
        return ExitCode::SUCCESS;
    }
    let checks = [structure, names, backends, prose, links];
    let findings: Vec<_> = checks.iter().flat_map(|check| check(&project)).collect();
    findings.iter().for_each(|finding| println!("{finding}"));
    if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
