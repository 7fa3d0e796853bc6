//! 64 processes, 1000 increments each, of a counter that nothing but the lock protects.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use crate::common::{Process, acquire, locker, path_text, run_if_child, say, scratch};

const PROCESSES: usize = 64;
const INCREMENTS: usize = 1000;

#[test]
fn child() {
    run_if_child(async |_, args| {
        let [dir, counter] = args else { panic!("increment <directory> <counter>") };
        let locks = locker(Path::new(dir));
        say("ready");
        crate::common::listen();
        for _ in 0..INCREMENTS {
            let guard = acquire(&locks, "counter").await;
            let text = std::fs::read_to_string(counter).unwrap();
            let (count, token) = text.split_once(' ').unwrap();
            let ours = guard.fencing_token().unwrap();
            assert!(ours > crate::common::token(token), "tokens grow with every grant");
            let count = count.parse::<usize>().unwrap() + 1;
            write(counter, count, ours.as_u64());
            guard.release().await.unwrap();
        }
        say("done");
        crate::common::listen();
    });
}

/// Writes in place and always as long: emptying a file first makes ext4 start writing it to the
/// disk.
fn write(counter: impl AsRef<Path>, count: usize, token: u64) {
    let mut file = OpenOptions::new().write(true).open(counter).unwrap();
    write!(file, "{count:020} {token:020}").unwrap();
}

#[test]
fn no_increment_is_lost() {
    let scratch = scratch();
    let counter = scratch.path().join("counter");
    std::fs::File::create(&counter).unwrap();
    write(&counter, 0, 0);
    let args = [path_text(&scratch.path().join("locks")), path_text(&counter)];
    let args: Vec<&str> = args.iter().map(String::as_str).collect();

    let mut processes: Vec<_> =
        (0..PROCESSES).map(|_| Process::start(module_path!(), "increment", &args)).collect();
    for process in &mut processes {
        assert_eq!(process.hear(), "ready");
    }
    for process in &mut processes {
        process.tell("go");
    }
    for process in &mut processes {
        assert_eq!(process.hear(), "done");
    }
    processes.into_iter().for_each(Process::finish);

    let text = std::fs::read_to_string(&counter).unwrap();
    let (count, _) = text.split_once(' ').unwrap();
    assert_eq!(count.parse::<usize>().unwrap(), PROCESSES * INCREMENTS);
}
