//! Re-creates the patches after the code around them has changed.

use std::path::Path;

use crate::git::{Aside, git};
use crate::patch::Mutant;

/// Merges each mutant into the working tree and writes its patch anew. Returns whether all could be
/// merged.
///
/// # Errors
///
/// Git fails for another reason than a conflict.
pub(crate) fn refresh(project: &Path, mutants: &[Mutant]) -> Result<bool, String> {
    let now = Aside::at(project, "HEAD")?;
    now.add_all()?;
    let now = now.commit("HEAD")?;
    let mut stuck = 0;
    for mutant in mutants {
        match merge(project, mutant, &now) {
            Ok(diff) => mutant.rewrite(&diff)?,
            Err(error) => {
                stuck += 1;
                println!("{}: write it anew by hand: {error}", mutant.name);
            }
        }
    }
    println!("{} refreshed, {stuck} not merged", mutants.len() - stuck);
    Ok(stuck == 0)
}

/// Returns the diff that plants the mutant in the tree `now`.
///
/// The base of the merge is HEAD, where the patch applies to it, or the commit in which it was
/// written last.
fn merge(project: &Path, mutant: &Mutant, now: &str) -> Result<String, String> {
    let planted = |base: &str| {
        let tree = Aside::at(project, base)?;
        tree.apply(&mutant.diff)?;
        tree.commit(base)
    };
    let file = mutant.file.display().to_string();
    let written = || git(project, &["log", "-1", "--format=%H", "--", &file], "");
    // As new as the code that it changes.
    let planted =
        planted(now).or_else(|_| planted("HEAD")).or_else(|_| planted(written()?.trim()))?;
    let merged = git(project, &["merge-tree", "--write-tree", now, &planted], "")
        .map_err(|_| "its lines and those of the code have both changed".to_owned())?;
    let merged = merged.lines().next().unwrap_or_default();
    git(project, &["diff", "-U1", "--no-color", "--no-renames", now, merged], "")
}
