//! `lockctl completions` and `man`, generated from the definition of the arguments.

use clap_complete::Shell;
use clap_mangen::Man as Page;
use clap_mangen::roff::{Roff, roman};

use crate::cli::{Completions, Man, definition};
use crate::exit::{Exit, Failure};
use crate::output::{print, unwritable};

/// The date of the text. With the date of the build, each build would differ.
const DATE: &str = "2026-11-20";

pub(crate) fn completions(args: &Completions) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut definition(), "lockctl", &mut script);
    let script = String::from_utf8_lossy(&script);
    print(&match args.shell {
        Shell::Bash => {
            script.replace("complete -F _lockctl ", "complete -F _lockctl_or_command ")
                + BASH_COMMAND
        }
        // The completion that clap writes takes the "--" for the command.
        Shell::Zsh => match script.split_once(ZSH_SCRIPT_ENDS) {
            Some((script, end)) => {
                script.replace(":_cmdambivalent'", ":_lockctl_command'")
                    + ZSH_COMMAND
                    + ZSH_SCRIPT_ENDS
                    + end
            }
            None => script.into_owned(),
        },
        Shell::Fish => script.into_owned() + FISH_COMMAND,
        _ => script.into_owned(),
    })?;
    Ok(Exit::SUCCESS)
}

/// Completes the command after `--`, and leaves the words before it to `_lockctl`. The functions
/// that complete another command's arguments come with the package bash-completion.
const BASH_COMMAND: &str = r#"
_lockctl_or_command() {
    local at
    for ((at = 2; at < COMP_CWORD; at++)); do
        [[ ${COMP_WORDS[at]} == -- ]] && break
    done
    if ((at >= COMP_CWORD)); then
        _lockctl "$@"
    elif declare -F _comp_command_offset >/dev/null; then
        _comp_command_offset $((at + 1))
    elif declare -F _command_offset >/dev/null; then
        _command_offset $((at + 1))
    elif ((at + 1 == COMP_CWORD)); then
        COMPREPLY=($(compgen -c -- "$2"))
    else
        # The names of files, by default.
        COMPREPLY=()
    fi
}
"#;

/// Completes the command after `--`.
const ZSH_COMMAND: &str = r#"
_lockctl_command() {
    local -i at=${words[(I)--]}
    words=("${(@)words[at+1,-1]}")
    (( CURRENT -= at ))
    _normal
}
"#;

/// The line before which functions must be defined.
const ZSH_SCRIPT_ENDS: &str = "\nif [ \"$funcstack[1]\"";

/// Completes the command after `--`.
const FISH_COMMAND: &str = r#"
function __fish_lockctl_command
    set -l words (commandline -opc)
    set -l at (contains -i -- -- $words); or return 1
    set -l command (string escape -- $words) (commandline -ct)
    complete -C (string join -- ' ' $command[(math $at + 1)..])
end
complete -c lockctl -n 'contains -- -- (commandline -opc)' -k -x -a '(__fish_lockctl_command)'
"#;

pub(crate) fn man(args: &Man) -> Result<Exit, Failure> {
    let definition = definition();
    let subject = match &args.verb {
        Some(verb) => definition.find_subcommand(verb).expect("clap has compared it").clone(),
        None => definition,
    };
    let page = page(subject).map_err(|error| unwritable(&error))?;
    print(&String::from_utf8_lossy(&page))?;
    Ok(Exit::SUCCESS)
}

fn page(subject: clap::Command) -> std::io::Result<Vec<u8>> {
    let title = subject.get_display_name().unwrap_or("lockctl").to_uppercase();
    let details = subject.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    let has_verbs = subject.has_subcommands();
    let version = concat!("lockctl ", env!("CARGO_PKG_VERSION"));
    let page = Page::new(subject).title(title).section("1").date(DATE);
    let page = page.source(version).manual("User Commands");
    let (text, sections) = sections_of(&details);

    let mut out = Vec::new();
    page.render_title(&mut out)?;
    page.render_name_section(&mut out)?;
    page.render_synopsis_section(&mut out)?;
    page.render_description_section(&mut out)?;
    text.to_writer(&mut out)?;
    page.render_options_section(&mut out)?;
    if has_verbs {
        page.render_subcommands_section(&mut out)?;
    }
    sections.to_writer(&mut out)?;
    Ok(out)
}

/// Returns the paragraphs of `--help` below the options, and the sections, whose lines stay as they
/// are.
fn sections_of(details: &str) -> (Roff, Roff) {
    let (mut text, mut sections) = (Roff::new(), Roff::new());
    for block in details.split("\n\n") {
        match block.split_once(":\n") {
            Some((title, lines)) => {
                sections.control("SH", [title.to_uppercase().as_str()]).control("nf", []);
                for line in lines.lines() {
                    sections.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
                }
                sections.control("fi", []);
            }
            None => {
                text.control("PP", []).text([roman(block)]);
            }
        }
    }
    (text, sections)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_keep_their_lines_and_paragraphs_stay_paragraphs() {
        let (text, sections) = sections_of("One: two.\n\nThree.\n\nExit status:\n  0 yes\n  .1 no");
        assert_eq!(text.render().matches(".PP").count(), 2);
        let sections = sections.render();
        assert!(sections.contains(".SH \"EXIT STATUS\""), "{sections}");
        assert!(sections.contains("\n0 yes\n\\&.1 no\n"), "{sections}");
    }
}
