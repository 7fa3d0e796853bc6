//! Parsing of the arguments. The answer to wrong usage is one line with the remedy.

use std::ffi::OsStr;

use clap::Parser as _;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::cli::{self, Cli, InternalVerb, VERBS};
use crate::exit::Failure;

/// Parses the arguments of an internal verb, if lockctl was started by itself.
pub(crate) fn parse_internal() -> Result<Option<InternalVerb>, Failure> {
    let verb = std::env::args_os().nth(1);
    if !verb.is_some_and(|verb| verb == cli::EXEC || verb == cli::DIE) {
        return Ok(None);
    }
    InternalVerb::try_parse().map(Some).map_err(|error| Failure::usage(advice(&error)))
}

/// Parses the arguments. Returns `None` after printing help or the version.
pub(crate) fn parse() -> Result<Option<Cli>, Failure> {
    match Cli::try_parse() {
        Ok(cli) => Ok(Some(cli)),
        Err(error)
            if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) =>
        {
            // A reader that closed the pipe has read enough.
            let _ = error.print();
            Ok(None)
        }
        Err(error) => Err(Failure::usage(advice(&error))),
    }
}

/// Returns the line for an error of clap.
fn advice(error: &clap::Error) -> String {
    let verb = verb_of(std::env::args_os().skip(1));
    let usage = || format!("write: {}", cli::usage(verb));
    let argument = text(error, ContextKind::InvalidArg);
    let option = argument.split(' ').next().unwrap_or_default();
    let value = text(error, ContextKind::InvalidValue);
    match error.kind() {
        ErrorKind::ValueValidation => {
            let why = std::error::Error::source(error);
            let why = why.map_or_else(|| "it is not valid".to_owned(), ToString::to_string);
            match argument.as_str() {
                "<NAME>" | "[NAME]" => why,
                _ => format!("{option}: {why}"),
            }
        }
        ErrorKind::InvalidValue if value.is_empty() => format!("{option} needs a value"),
        ErrorKind::InvalidValue => {
            let known = text(error, ContextKind::ValidValue);
            format!("unknown {} {}; known are: {known}", noun(option), quoted(&value))
        }
        ErrorKind::InvalidUtf8 => "names and options must be UTF-8".to_owned(),
        ErrorKind::UnknownArgument if argument.starts_with('-') => {
            format!("unknown option {}; {}", quoted(&argument), see_help(verb))
        }
        ErrorKind::UnknownArgument if verb == Some("run") => {
            format!("{} is not expected: put -- before the command; {}", quoted(&argument), usage())
        }
        ErrorKind::UnknownArgument => {
            format!("{} is not expected; {}", quoted(&argument), usage())
        }
        ErrorKind::MissingRequiredArgument => {
            let missing = match argument.as_str() {
                either if either.contains("--force") => "--owner OWNER or --force",
                name if name.contains("NAME") => "a lock name",
                shell if shell.contains("SHELL") => "a shell",
                _ => "a command after --",
            };
            format!("{missing} is missing; {}", usage())
        }
        ErrorKind::ArgumentConflict => {
            let other = text(error, ContextKind::PriorArg);
            if other.is_empty() || other == argument {
                format!("{option} was given twice; give it once")
            } else {
                format!("{option} and {other} exclude each other; give one of them")
            }
        }
        ErrorKind::InvalidSubcommand => {
            let verb = text(error, ContextKind::InvalidSubcommand);
            format!("unknown verb {}; known are: {}", quoted(&verb), VERBS.join(", "))
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            format!("a verb is missing; {}, or see lockctl --help", usage())
        }
        _ => format!("wrong usage; {}, and {}", usage(), see_help(verb)),
    }
}

/// Finds the verb among the arguments: clap's error does not name it.
fn verb_of(arguments: impl Iterator<Item = impl AsRef<OsStr>>) -> Option<&'static str> {
    for argument in arguments {
        let argument = argument.as_ref();
        if argument == "--" {
            return None;
        }
        if let Some(verb) = VERBS.iter().find(|verb| argument == **verb) {
            return Some(verb);
        }
    }
    None
}

fn see_help(verb: Option<&str>) -> String {
    match verb {
        Some(verb) => format!("see lockctl {verb} --help"),
        None => "see lockctl --help".to_owned(),
    }
}

/// Returns the word in `<SHELL>`.
fn noun(argument: &str) -> String {
    argument.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase()
}

fn text(error: &clap::Error, kind: ContextKind) -> String {
    match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(" "),
        Some(ContextValue::StyledStr(text)) => StyledStr::to_string(text),
        _ => String::new(),
    }
}

/// Quotes an argument for a message: short, and not a URL, which may hold a password.
fn quoted(argument: &str) -> String {
    const LONGEST: usize = 60;
    if argument.contains("://") {
        return "the URL".to_owned();
    }
    match argument.char_indices().nth(LONGEST) {
        None => format!("{argument:?}"),
        Some((end, _)) => format!("{:?}…", &argument[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_not_repeated() {
        assert!(!quoted("redis://u:secret@h").contains("secret"));
        assert!(quoted(&"x".repeat(100_000)).len() < 100);
    }

    #[test]
    fn the_verb_is_found_among_the_options() {
        for (arguments, verb) in [
            (&["--backend", "memory:", "renew", "n"][..], Some("renew")),
            (&["--", "renew"], None),
            (&["walk"], None),
            (&["run", "n", "--", "list"], Some("run")),
        ] {
            assert_eq!(verb_of(arguments.iter()), verb, "{arguments:?}");
        }
    }

    /// Returns the commands of lockctl in the code of a page, without those that only name a verb.
    fn commands(page: &str) -> Vec<String> {
        let mut fenced = false;
        let mut commands = Vec::new();
        for line in page.lines() {
            fenced ^= line.starts_with("```");
            let code: Vec<&str> = match fenced {
                true => vec![line],
                false => line.split('`').skip(1).step_by(2).collect(),
            };
            for command in code.iter().filter_map(|code| Some(code.split_once("lockctl ")?.1)) {
                let ends = [" # ", " && ", " | ", "; ", " >"].iter();
                let end = ends.filter_map(|end| command.find(end)).min().unwrap_or(command.len());
                // Behind `cargo run -p lockctl --`.
                let command = command[..end].trim();
                commands.push(command.strip_prefix("-- ").unwrap_or(command).to_owned());
            }
        }
        commands.retain(|command| command.contains(' ') && !command.contains("VERB"));
        commands
    }

    /// Splits as a shell does, for commands with plain quotes.
    fn words(command: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut quote = None;
        for letter in command.chars() {
            match quote {
                Some(open) if open == letter => quote = None,
                None if letter == '\'' || letter == '"' => quote = Some(letter),
                None if letter == ' ' => words.push(String::new()),
                _ => words.last_mut().expect("never empty").push(letter),
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }

    #[test]
    fn the_commands_in_the_documentation_are_valid() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let pages = std::fs::read_dir(root.join("docs")).expect("the folder docs is there");
        let pages = pages.map(|page| page.expect("it can be listed").path());
        let pages =
            pages.chain(["README.md", "SECURITY.md", "lock-cli/README.md"].map(|it| root.join(it)));
        let mut seen = 0;
        for page in pages.filter(|page| page.extension().is_some_and(|it| it == "md")) {
            for command in commands(&std::fs::read_to_string(&page).expect("the page is text")) {
                let parsed =
                    Cli::try_parse_from([vec!["lockctl".into()], words(&command)].concat());
                let error = parsed.err().filter(clap::Error::use_stderr);
                assert!(error.is_none(), "{}: lockctl {command}: {error:?}", page.display());
                seen += 1;
            }
        }
        assert!(seen > 30, "{seen} commands");
    }
}
