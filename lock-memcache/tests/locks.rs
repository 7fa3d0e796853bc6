//! Promises beside the laws: the items on the server, and the commands to it.

use std::time::Duration;

use lock_conformance::helpers::{claim, contended, granted, name, renew, win};
use lock_core::backend::{HoldKind, Release, ReleaseMode, Renewal};
use lock_core::clock::{Moment, sleep};
use lock_core::{Backend, FencingToken, Label, LockName, Locker, OwnerId};
use lock_memcache::Memcached;

#[path = "support/recorder.rs"]
mod recorder;
mod support;

use recorder::Recorder;
use support::{Server, client, start};

#[tokio::test]
async fn a_pair_is_two_round_trips_and_four_commands() {
    let server = start();
    let recorder = Recorder::start(&server);
    let locks = Memcached::connect(recorder.url()).await.unwrap();
    recorder.said();
    let mut ours = claim("orders/42", 1900);
    let owner = ours.owner.expose();
    win(&locks, &mut ours).await;
    let said = recorder.said();
    let value = said.lines().nth(1).expect("the value has a line of its own");
    let attempt = value.strip_prefix(&format!("{owner} ")).and_then(|rest| rest.strip_suffix(" -"));
    attempt.expect("the owner, an attempt, no number").parse::<u64>().expect("it is counted");
    assert_eq!(
        said,
        format!(
            "add orders/42 0 5 {}\r\n{value}\r\nmg orders/42 v t c\r\nma %fence D1 T2592000 v\r\n",
            value.len()
        )
    );
    assert_eq!(locks.release(&ours, ReleaseMode::now()).await.unwrap(), Release::Released);
    let said = recorder.said();
    assert!(said.starts_with("md orders/42 C") && said.lines().count() == 1, "{said}");
}

#[tokio::test]
async fn those_who_raise_the_counter_together_raise_it_once() {
    const STEP: u64 = 3_600_000_000;
    let server = start();
    let last = granted(client(&server).await.try_acquire(&claim("n", 1900)).await).token.unwrap();
    let min_token = FencingToken::from_backend(last.backend_number() + STEP);
    let mut clients = Vec::new();
    for _ in 0..16 {
        clients.push(client(&server).await);
    }
    let mut raising = tokio::task::JoinSet::new();
    for (number, locks) in clients.into_iter().enumerate() {
        let mut claim = claim(&format!("n{number}"), 1900);
        claim.min_token = min_token;
        raising.spawn(async move { granted(locks.try_acquire(&claim).await).token });
    }
    let raised = raising.join_all().await;
    let within = FencingToken::from_backend(last.backend_number() + STEP + STEP / 2);
    assert!(
        raised.iter().all(|&token| token > min_token && token < within),
        "{last:?}: {raised:?}"
    );
}

/// Names that would end a key or a command, with values that are commands.
#[tokio::test]
async fn the_server_hears_the_commands_that_were_meant() {
    let server = start();
    let recorder = Recorder::start(&server);
    let locks = Memcached::connect(recorder.url()).await.unwrap();
    let long = "flush_all\r\n".repeat(50);
    for text in [
        "a b",
        "a\r\nflush_all\r\n",
        "a 0 0 1\r\nx\r\nflush_all",
        "\0",
        "\u{7f}\u{80}é",
        "%",
        "%fence",
        "%server",
        " ",
        "\t",
        "x\u{2028}y",
        &"k".repeat(251),
        &long,
    ] {
        recorder.said();
        let mut ours = claim(text, 1000);
        ours.label = Some(Label::new("\r\nflush_all\r\n"));
        win(&locks, &mut ours).await;
        assert!(matches!(renew(&locks, &ours).await, Ok(Renewal::Held(_))), "{text:?}");
        assert_eq!(locks.inspect(&ours.name).await.unwrap().holders.len(), 1);
        assert!(locks.break_lock(&ours.name, &ours.owner).await.unwrap());
        let said = recorder.said();
        let mut lines = said.split_terminator("\r\n");
        let mut key = None;
        while let Some(line) = lines.next() {
            let words: Vec<&str> = line.split(' ').collect();
            assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{text:?}: {line:?}");
            match words[..] {
                ["add" | "cas", of, "0", seconds, length, ..] => {
                    assert_eq!(*key.get_or_insert(of), of, "{text:?}");
                    assert_eq!(seconds, "4");
                    let data = lines.next().expect("data follow");
                    assert_eq!(length.parse(), Ok(data.len()), "{text:?}: {data:?}");
                }
                ["mg" | "md", of, ..] => assert_eq!(key, Some(of), "{text:?}"),
                ["ma", "%fence", "D1", _, "v"] => {}
                _ => panic!("{text:?}: {line:?}"),
            }
        }
        let key = key.expect("something was said");
        assert!(key.len() <= 200 && key != "%fence" && key != "%server", "{key:?}");
    }
    assert_eq!(server.stat("cmd_flush"), "0");
}

#[tokio::test]
async fn a_foreign_touch_or_set_of_the_same_is_no_loss_and_another_value_is() {
    let server = start();
    let locks = client(&server).await;
    let mut ours = claim("n", 5000);
    win(&locks, &mut ours).await;
    for meddling in ["touch n 100", "mg n T200", "set"] {
        if meddling == "set" {
            let same = server.value("n").expect("it is held");
            let stored = server.command(&format!("set n 0 60 {}\r\n{same}", same.len()));
            assert_eq!(stored, "STORED");
        } else {
            assert!(!server.command(meddling).contains("ERROR"));
        }
        assert!(matches!(renew(&locks, &ours).await, Ok(Renewal::Held(_))), "{meddling}");
    }
    let touched = server.command("touch n 77");
    assert_eq!(touched, "TOUCHED");
    assert_eq!(locks.release(&ours, ReleaseMode::now()).await.unwrap(), Release::Released);

    win(&locks, &mut ours).await;
    assert_eq!(server.command("set n 0 60 5\r\nthief"), "STORED");
    assert!(matches!(renew(&locks, &ours).await, Ok(Renewal::NotHeld)));
    assert_eq!(locks.release(&ours, ReleaseMode::now()).await.unwrap(), Release::NotHeld);
    assert_eq!(server.value("n").as_deref(), Some("thief"));
}

/// Checks a lock whose CAS number the holder knows, and that another client holds by now with the
/// same number: all servers start with the same ones.
#[tokio::test]
async fn numbers_of_a_server_that_was_started_anew_are_not_believed() {
    let server = start();
    let locks = client(&server).await;
    for how in ["release", "renew"] {
        server.restart();
        let mut ours = claim(how, 60_000);
        // The first one may find that its connection is broken.
        let awake = Locker::new(locks.clone()).lock("awake").unwrap();
        while awake.try_acquire().await.is_err() {}
        win(&locks, &mut ours).await;
        let cas = cas_of(&server, how);
        server.restart();
        // The new holder's item gets the number that ours had.
        let theirs = OwnerId::mint().expose();
        while server.command("ms filler 1 c\r\nx") != format!("HD c{}", cas - 1) {}
        assert_eq!(server.command(&format!("add {how} 0 60 36\r\n{theirs} 1 7")), "STORED");
        assert_eq!(cas_of(&server, how), cas);
        // The first verb finds the connection broken, the second makes a new one.
        for _ in 0..2 {
            let answer = match how {
                "release" => locks
                    .release(&ours, ReleaseMode::now())
                    .await
                    .map(|end| end == Release::Released),
                _ => renew(&locks, &ours).await.map(|answer| matches!(answer, Renewal::Held(_))),
            };
            assert!(!matches!(answer, Ok(true)), "{how}: {answer:?}");
        }
        assert_eq!(server.value(how), Some(format!("{theirs} 1 7")), "{how} harmed the new holder");
    }
}

fn cas_of(server: &Server, key: &str) -> u64 {
    let answer = server.command(&format!("mg {key} c"));
    answer.strip_prefix("HD c").and_then(|cas| cas.parse().ok()).expect("it is there")
}

#[tokio::test]
async fn a_repeated_attempt_finds_its_token_or_gets_a_higher_one() {
    let server = start();
    let (locks, elsewhere) = (client(&server).await, client(&server).await);
    let mut ours = claim("n", 5000);
    let first = win(&locks, &mut ours).await;
    // From another process, before the token is on the server, and then after it.
    let mut again = ours.clone();
    again.ticket = None;
    let higher = granted(elsewhere.try_acquire(&again).await);
    assert!(higher.token > first.token);
    let same = granted(locks.try_acquire(&again).await);
    assert_eq!(same.token, first.token);
    let third = client(&server).await;
    assert_eq!(granted(third.try_acquire(&again).await).token, first.token);
    assert!(locks.break_lock(&ours.name, &ours.owner).await.unwrap());
}

#[tokio::test]
async fn the_item_on_the_server_is_as_documented() {
    let server = start();
    let locks = client(&server).await;
    let mut ours = claim("n", 20_000);
    ours.label = Some(Label::new("web-1"));
    let token = win(&locks, &mut ours).await.token.unwrap().backend_number();
    let owner = ours.owner.expose();
    let before = server.value("n").unwrap();
    assert!(before.starts_with(&owner) && before.ends_with(" - web-1"), "{before}");
    renew(&locks, &ours).await.unwrap();
    assert_eq!(server.value("n"), Some(before.replace(" - ", &format!(" {token} "))));
    assert_eq!(server.value("%fence"), Some(token.to_string()));
    let state = locks.inspect(&ours.name).await.unwrap();
    let holder = &state.holders[0];
    assert_eq!(holder.label, ours.label);
    assert!(holder.expires_in.unwrap() <= Duration::from_secs(23));
    let seconds = token / 1_000_000;
    let now: u64 = server.stat("time").parse().unwrap();
    assert!(now - seconds < 60, "the token {token} is not of {now}");
    locks.release(&ours, ReleaseMode::now()).await.unwrap();
    assert_eq!(server.value("n"), None);
}

/// A process with nothing but the owner id has to see that the lock was granted, at once.
#[tokio::test]
async fn a_detached_lock_has_its_token_on_the_server() {
    let server = start();
    let (locks, elsewhere) = (client(&server).await, client(&server).await);
    let mut ours = claim("n", 5000);
    ours.hold = HoldKind::Detached;
    let token = win(&locks, &mut ours).await.token;
    assert_eq!(locks.inspect(&ours.name).await.unwrap().holders[0].token, token);
    ours.ticket = None;
    for client in [&elsewhere, &locks] {
        match renew(client, &ours).await {
            Ok(Renewal::Held(grant)) => assert_eq!(grant.token, token),
            other => panic!("{other:?}"),
        }
        // Also where an answer was lost.
        assert_eq!(granted(client.try_acquire(&ours).await).token, token);
    }
}

#[tokio::test]
async fn several_servers_share_the_locks() {
    let servers = [start(), start(), start()];
    let addrs = servers.each_ref().map(|server| server.addr().to_string());
    let locks = Memcached::connect(format!("memcache://{}", addrs.join(","))).await.unwrap();
    let mut reversed = addrs.clone();
    reversed.reverse();
    let others = Memcached::connect(format!("memcache://{}", reversed.join(","))).await.unwrap();
    let mut held = Vec::new();
    for i in 0..60 {
        let mut ours = claim(&format!("n{i}"), 60_000);
        win(&locks, &mut ours).await;
        contended(others.try_acquire(&claim(&format!("n{i}"), 1000)).await);
        held.push(ours);
    }
    for server in &servers {
        let items: u64 = server.stat("curr_items").parse().unwrap();
        assert!((5..60).contains(&items), "{items} of 60 locks on one of three servers");
    }
    let answers = others.renew(&held.iter().collect::<Vec<_>>()).await;
    assert!(answers.iter().all(|answer| matches!(answer, Ok(Renewal::Held(_)))), "{answers:?}");
    assert!(locks.identity().await.unwrap().is_none());
}

#[tokio::test]
async fn a_server_is_known_again() {
    let (one, other) = (start(), start());
    let a = client(&one).await.identity().await.unwrap().unwrap();
    let b = Memcached::connect(format!("{}?prefix=x:", one.url())).await.unwrap();
    let c = client(&other).await.identity().await.unwrap().unwrap();
    assert_eq!(b.identity().await.unwrap().unwrap().id, a.id);
    assert_ne!(a.id, c.id);
    // The key is gone, and another one would make two servers of it.
    assert_eq!(one.command("flush_all"), "OK");
    assert!(client(&one).await.identity().await.unwrap().is_none());
    one.restart();
    assert_ne!(client(&one).await.identity().await.unwrap().unwrap().id, a.id);
}

/// A quorum does not count it for as long as leases last.
#[tokio::test]
async fn a_server_is_no_older_than_it_is() {
    let began = Moment::now();
    let server = start();
    let locks = client(&server).await;
    while Moment::now().saturating_since(began) < Duration::from_millis(4500) {
        let told = locks.identity().await.unwrap().unwrap().up_for.expect("it tells");
        let age = Moment::now().saturating_since(began);
        assert!(told <= age, "{told:?}, and it was started {age:?} ago");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_prefix_keeps_lock_spaces_apart() {
    let server = start();
    let plain = client(&server).await;
    let inside = Memcached::connect(format!("{}?prefix=app:", server.url())).await.unwrap();
    let mut ours = claim("n", 5000);
    win(&inside, &mut ours).await;
    win(&plain, &mut claim("n", 5000)).await;
    assert!(server.value("app:n").is_some_and(|value| value.starts_with(&ours.owner.expose())));
    let same = LockName::new("app:n").unwrap();
    let seen = plain.inspect(&same).await.unwrap();
    assert_eq!(seen.holders[0].owner, Some(ours.owner), "without a prefix it is a plain name");
    assert!(plain.inspect(&name("x")).await.unwrap().holders.is_empty());
}
