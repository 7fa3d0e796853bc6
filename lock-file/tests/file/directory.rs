//! Which directories are taken, and which are refused.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::common::{Process, acquire, is_free, locker, path_text, run_if_child, say, scratch};
use lock_core::{Error, ErrorKind, Locker};
use lock_file::FileLocks;

#[test]
fn child() {
    run_if_child(async |_, _| match FileLocks::for_this_user() {
        Ok(locks) => say(locks.directory().display()),
        Err(error) => say(format!("{:?}: {error}", error.kind())),
    });
}

/// Returns the refusal of `dir`, which must be named in it.
fn refusal(dir: impl AsRef<Path>) -> Error {
    let error = FileLocks::at(dir.as_ref()).unwrap_err();
    let named = dir.as_ref().components().collect::<PathBuf>();
    assert!(error.to_string().contains(&path_text(&named)), "{error}");
    error
}

#[test]
fn a_missing_directory_is_created_for_this_user_alone() {
    let scratch = scratch();
    let dir = scratch.path().join("locks");
    locker(&dir);
    assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
    locker(&dir);
}

#[test]
fn a_directory_that_others_can_write_to_is_refused() {
    let scratch = scratch();
    for mode in [0o707, 0o702, 0o1777] {
        std::fs::set_permissions(scratch.path(), Permissions::from_mode(mode)).unwrap();
        let error = refusal(scratch.path());
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains("chmod go-w"), "{error}");
    }
    std::fs::set_permissions(scratch.path(), Permissions::from_mode(0o755)).unwrap();
    locker(scratch.path());
}

#[test]
fn links_files_and_other_paths_are_refused() {
    let scratch = scratch();
    let link = scratch.path().join("link");
    symlink(scratch.path(), &link).unwrap();
    assert_eq!(refusal(&link).kind(), ErrorKind::Invalid);
    assert_eq!(refusal(link.join("")).kind(), ErrorKind::Invalid);

    let file = scratch.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert_eq!(refusal(&file).kind(), ErrorKind::Invalid);

    let deep = scratch.path().join("missing/locks");
    assert_eq!(refusal(&deep).kind(), ErrorKind::Invalid);
    assert!(!scratch.path().join("missing").exists());
    assert_eq!(refusal("relative/locks").kind(), ErrorKind::Invalid);
    assert_eq!(refusal("").kind(), ErrorKind::Invalid);
    for not_a_name in ["/", "//", "/tmp/.."] {
        assert_eq!(refusal(not_a_name).kind(), ErrorKind::Invalid);
    }
    let error = FileLocks::at("/tmp/nul\0byte").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[test]
fn a_parent_that_takes_no_directories_is_not_said_to_be_missing() {
    let error = refusal("/proc/locks-of-nobody");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let text = error.to_string();
    assert!(text.contains("takes no directories") && !text.contains("does not exist"), "{text}");
}

#[test]
fn a_directory_that_others_could_move_away_is_refused() {
    let scratch = scratch();
    let parent = scratch.path().join("open");
    let dir = parent.join("below/locks");
    std::fs::create_dir_all(dir.parent().unwrap()).unwrap();
    for (mode, refused) in [(0o777, true), (0o757, true), (0o1777, false), (0o755, false)] {
        std::fs::set_permissions(&parent, Permissions::from_mode(mode)).unwrap();
        if refused {
            let error = refusal(&dir);
            assert_eq!(error.kind(), ErrorKind::Denied, "{mode:o}");
            assert!(error.to_string().contains(&path_text(&parent)), "{error}");
        } else {
            locker(&dir);
        }
    }
}

#[tokio::test]
async fn a_link_above_the_directory_that_is_turned_does_not_split_the_locks() {
    let scratch = scratch();
    let (old, new) = (scratch.path().join("old"), scratch.path().join("new"));
    for dir in [&old, &new] {
        std::fs::create_dir(dir).unwrap();
    }
    let link = scratch.path().join("link");
    symlink(&old, &link).unwrap();
    let locks = FileLocks::at(link.join("locks")).unwrap();
    assert_eq!(locks.directory(), old.canonicalize().unwrap().join("locks"));
    let locks = Locker::new(locks);
    let guard = acquire(&locks, "n").await;
    std::fs::remove_file(&link).unwrap();
    symlink(&new, &link).unwrap();
    assert!(!is_free(&locks, "n").await, "one process, one lock space");
    assert!(guard.verify().await.is_ok(), "its file is where it was");
    guard.release().await.unwrap();
}

/// The one test that makes the real default directory. It leaves nothing in it. That no environment
/// variable has a say can only be seen where the directory is looked for, and a mount namespace of
/// its own would need rights that a test cannot count on.
#[test]
fn the_default_directory_does_not_depend_on_the_environment() {
    let scratch = scratch();
    let of_user = |runtime_dir: Option<&Path>| {
        let mut command = Process::command(module_path!(), "for this user", &[]);
        match runtime_dir {
            Some(dir) => command.env("XDG_RUNTIME_DIR", dir).env("TMPDIR", dir),
            None => command.env_remove("XDG_RUNTIME_DIR").env_remove("TMPDIR"),
        };
        Process::spawn(command).hear()
    };
    let default = of_user(None);
    let user = std::fs::metadata(scratch.path()).unwrap().uid();
    assert_eq!(default, format!("/run/lock/locks-{user}"));
    assert_eq!(Path::new(&default), FileLocks::directory_of_this_user());
    assert_eq!(std::fs::metadata(&default).unwrap().mode() & 0o777, 0o700);
    assert_eq!(of_user(Some(scratch.path())), default, "a session and a job of cron must agree");
}
