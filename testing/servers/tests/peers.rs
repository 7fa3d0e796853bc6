//! The processes that lock on command: commands, stops and kills.

use std::process::Command;
use std::time::Duration;

use test_servers::peers::Peer;

/// Starts a peer that answers each line with the same line.
fn echo() -> Peer {
    Peer::start("an echo", Command::new("cat"))
}

#[tokio::test]
async fn it_answers_line_by_line() {
    let mut peer = echo();
    peer.tell("one");
    peer.tell("two");
    assert_eq!(peer.answer().await, "one");
    assert_eq!(peer.ask("three").await, "two");
    assert_eq!(peer.answer().await, "three");
}

#[tokio::test]
async fn a_stopped_one_answers_when_it_goes_on() {
    let mut peer = echo();
    peer.stop();
    let early = tokio::time::timeout(Duration::from_millis(300), peer.ask("one")).await;
    assert!(early.is_err(), "{early:?}");
    peer.cont();
    assert_eq!(peer.answer().await, "one");
}

#[tokio::test]
#[should_panic(expected = "an echo has ended")]
async fn of_one_that_was_killed_no_answer_comes() {
    let mut peer = echo();
    peer.stop();
    peer.kill();
    peer.answer().await;
}

#[test]
#[should_panic(expected = "a program cannot be started")]
fn a_program_that_is_not_there_is_named() {
    let _ = Peer::start("a program", Command::new("/no/such/program"));
}
