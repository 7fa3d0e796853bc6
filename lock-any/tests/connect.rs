//! URLs: the backends that they name, and the errors of wrong ones.

use std::time::Duration;

use lock_any::{ErrorKind, Order, connect};

async fn refused(url: &str) -> (ErrorKind, String) {
    let error = connect(url).await.expect_err(url);
    (error.kind(), error.to_string())
}

/// Asserts on the text alone, because many programs log nothing else of an error.
#[tokio::test]
async fn a_failed_connection_says_where_and_why_by_itself() {
    let cases: &[(&str, &str)] = &[
        #[cfg(feature = "redis")]
        ("redis://u:hunter2@127.0.0.1:1", "127.0.0.1:1"),
        #[cfg(feature = "memcache")]
        ("memcache://u:hunter2@127.0.0.1:1", "127.0.0.1:1"),
        #[cfg(feature = "file")]
        ("file:///proc/locks-of-nobody", "/proc/locks-of-nobody"),
    ];
    for &(url, place) in cases {
        let (_, text) = refused(url).await;
        let why = text.to_lowercase();
        let has_cause = ["refused", "no such file"].iter().any(|it| why.contains(it));
        assert!(text.contains(place) && has_cause && !text.contains("hunter2"), "{url}: {text}");
        assert_eq!(text.matches(place).count(), 1, "{url}: {text}");
    }
}

#[cfg(feature = "file")]
#[tokio::test]
async fn a_shared_directory_is_asked_for_by_an_option() {
    for (url, hint) in [
        ("file:?share=group", "needs a directory"),
        ("file:///nosuch/locks?share=all", "share=group"),
        ("file:///tmp/nosuch-locks?share=group", "install -d -o root -g GROUP -m 3770"),
    ] {
        let (_, text) = refused(url).await;
        assert!(text.contains(hint), "{url}: {text}");
    }
    let dir = |url| lock_any::directory_of(url).map(|dir| dir.to_str().unwrap().to_owned());
    assert_eq!(dir("file:///a%20b?share=group&ttl=10s").as_deref(), Some("/a b"));
    assert!(dir("file:").unwrap().starts_with("/run/lock/locks-"));
    assert_eq!(dir("memory:"), None);
}

#[tokio::test]
async fn a_private_memory_is_a_space_of_its_own() {
    let one = connect("memory:?private=yes").await.unwrap();
    let other = connect("memory:?private=yes").await.unwrap();
    let _guard = one.lock("private").unwrap().try_acquire().await.unwrap().expect("free");
    assert!(other.lock("private").unwrap().try_acquire().await.unwrap().is_some());
    let shared = connect("memory:").await.unwrap();
    assert!(shared.lock("private").unwrap().try_acquire().await.unwrap().is_some());
    assert!(connect("memory:?private=no").await.is_err());
}

#[tokio::test]
async fn memory_is_one_lock_space_per_process() {
    let (one, other) = (connect("memory:").await.unwrap(), connect("memory://").await.unwrap());
    let guard = one.lock("shared").unwrap().acquire().await.unwrap();
    assert!(other.lock("shared").unwrap().try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn common_options_reach_the_locker() {
    let locks = connect("memory:?ttl=300ms&timeout=1s&outage_timeout=1m&max_ttl=1h&label=web%2D1")
        .await
        .unwrap();
    let guard = locks.lock("options").unwrap().acquire().await.unwrap();
    assert!(guard.valid_for().unwrap() <= Duration::from_millis(300));
    let state = locks.inspect(guard.name()).await.unwrap();
    assert_eq!(state.holders[0].label.as_ref().unwrap().as_str(), "web-1");
    let long = locks.lock("options").unwrap().ttl(Duration::from_secs(7200)).try_acquire().await;
    assert_eq!(long.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn locks_are_handed_over_inside_the_process_if_the_url_says_so() {
    let order = async |url| connect(url).await.unwrap().capabilities().order;
    assert_eq!(order("memory:").await, Order::Fifo);
    assert_eq!(order("memory:?handovers=0").await, Order::Fifo);
    assert_eq!(order("memory:?handovers=16").await, Order::PerProcess);
    let locks = connect("memory:?handovers=1").await.unwrap();
    let guard = locks.lock("passed on").unwrap().acquire().await.unwrap();
    let number = guard.fencing_token().unwrap().backend_number();
    let next = locks.lock("passed on").unwrap();
    let (next, ()) = tokio::join!(next.acquire(), async { drop(guard) });
    assert_eq!(next.unwrap().fencing_token().unwrap().backend_number(), number);
}

#[tokio::test]
async fn a_url_that_cannot_be_understood_says_what_to_do() {
    for (url, hint) in [
        ("", "begins with a scheme"),
        ("memory", "begins with a scheme"),
        ("/var/lock", "begins with a scheme"),
        ("nosuch://host", "known are memory:, file:, redis:"),
        ("memory:here", "write memory:"),
        ("memory:?ttl", "has no value"),
        ("memory:?ttl=0s", "not a positive duration"),
        ("memory:?ttl=-5s", "not a positive duration"),
        ("memory:?ttl=soon", "write 500ms, 30s or 2h"),
        ("memory:?ttl=99999999999999999999s", "not a positive duration"),
        ("memory:?ttl=1ns", "out of range"),
        ("memory:?ttl=1year", "out of range"),
        ("memory:?max_ttl=1s&ttl=2s", "from 1ms to 1s"),
        ("memory:?max_ttl=366days", "from 1ms to 365days"),
        ("memory:?max_ttl=1ns", "out of range"),
        ("memory:?timeout=31days", "from 1ms to 30days"),
        ("memory:?timeout=1us", "out of range"),
        ("memory:?outage_timeout=500000000000years", "out of range"),
        ("memory:?outage_timeout=1ns", "out of range"),
        ("memory:?handovers=256", "from 0, which is off, to 255"),
        ("memory:?handovers=some", "from 0, which is off, to 255"),
        ("memory:?ttl=1s&ttl=2s", "given twice"),
        ("memory:?colour=red", "no URL option \"colour\""),
        ("memory:#x", "no fragment"),
        ("memory:?label=%ff", "must be UTF-8"),
    ] {
        let (kind, text) = refused(url).await;
        assert_eq!(kind, ErrorKind::Invalid, "{url}");
        assert!(text.contains(hint), "{url}: {text}");
        assert!(!text.contains('\n'), "{url}: {text}");
    }
}

#[tokio::test]
async fn no_error_repeats_a_password() {
    for url in [
        "nosuch://user:hunter2@host",
        "nosuch://user:a?hunter2@host",
        "memory://user:hunter2@host",
        "memory://hunter2?x=hunter2",
        "memory:?ttl=hunter2",
    ] {
        let (_, text) = refused(url).await;
        assert!(!text.contains("hunter2"), "{text}");
    }
    // With a question mark in it, which begins the options.
    for part in
        ["hunter2", "hunter", "a=hunter", "hunter=a", "a&hunter", "a=1&a=hunter", "ttl=hunter"]
    {
        for scheme in ["redis", "rediss", "redis+unix", "memcache", "memory", "file", "nosuch"] {
            for beginning in ["se", "s@e"] {
                let url = format!("{scheme}://user:{beginning}?{part}@host");
                let (kind, text) = refused(&url).await;
                assert_eq!(kind, ErrorKind::Invalid, "{text}");
                assert!(!text.contains("hunter") && !text.contains("host"), "{text}");
            }
        }
    }
}

#[test]
fn the_ttl_of_a_url_is_what_its_locks_ask_for() {
    let ttl_of = |url| lock_any::ttl_of(url).unwrap();
    assert_eq!(ttl_of("memory:"), None);
    assert_eq!(ttl_of("memory:?ttl=5s"), Some(Duration::from_secs(5)));
    assert_eq!(ttl_of("memory:?max_ttl=1s"), Some(Duration::from_secs(1)));
    assert_eq!(ttl_of("memory:?max_ttl=1s&ttl=500ms"), Some(Duration::from_millis(500)));
    assert_eq!(ttl_of("memory:?max_ttl=1h"), Some(Duration::from_secs(30)));
}

#[cfg(feature = "file")]
mod file {
    use super::*;

    #[tokio::test]
    async fn a_directory_is_a_lock_space() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file://{}/with%20space?ttl=10s", dir.path().display());
        let (one, other) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
        assert!(dir.path().join("with space").is_dir());
        let guard = one.lock("shared").unwrap().acquire().await.unwrap();
        assert!(other.lock("shared").unwrap().try_acquire().await.unwrap().is_none());
        guard.release().await.unwrap();
    }

    #[tokio::test]
    async fn bad_options_are_refused_before_the_directory_is_touched() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("locks");
        for options in
            ["colour=red", "outage_timeout=500000000000years", "timeout=1ns", "max_ttl=2years"]
        {
            let (kind, _) = refused(&format!("file://{}?{options}", missing.display())).await;
            assert_eq!(kind, ErrorKind::Invalid);
            assert!(!missing.exists());
        }
        let (_, text) = refused("file:locks").await;
        assert!(text.contains("absolute path"), "{text}");
        let (_, text) = refused("file://host/locks").await;
        assert!(text.contains("absolute path"), "{text}");
        for url in ["file:///", "file:/", "file:///tmp/a%00b"] {
            assert_eq!(refused(url).await.0, ErrorKind::Invalid, "{url}");
        }
    }
}

#[cfg(not(feature = "file"))]
#[tokio::test]
async fn a_scheme_whose_feature_is_off_names_the_feature() {
    let (kind, text) = refused("file:").await;
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("feature \"file\""), "{text}");
}

#[cfg(not(feature = "redis"))]
#[tokio::test]
async fn a_server_whose_feature_is_off_names_the_feature() {
    for url in [
        "redis://u:hunter2@h",
        "rediss://h",
        "redis+unix:///s",
        "redis+sentinel://u:hunter2@h/name",
        "rediss+sentinel://h/name",
        "redis+cluster://u:hunter2@h,i",
    ] {
        let (kind, text) = refused(url).await;
        assert_eq!(kind, ErrorKind::Unsupported);
        assert!(text.contains("feature \"redis\"") && !text.contains("hunter2"), "{text}");
    }
}

#[cfg(not(feature = "memcache"))]
#[tokio::test]
async fn memcached_whose_feature_is_off_names_the_feature() {
    let (kind, text) = refused("memcache://u:hunter2@h,i").await;
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("feature \"memcache\"") && !text.contains("hunter2"), "{text}");
}

#[cfg(feature = "memcache")]
mod memcache {
    use super::*;

    #[tokio::test]
    async fn the_backend_reads_what_is_left_of_the_url() {
        // Port 1: no server listens there.
        for (url, expected, hint) in [
            (
                "memcache://127.0.0.1:1?ttl=10s&prefix=a%3A",
                ErrorKind::Unavailable,
                "cannot connect",
            ),
            ("memcache://127.0.0.1:1?prefix=a", ErrorKind::Invalid, "must end in ':'"),
            ("memcache://127.0.0.1:1?colour=red", ErrorKind::Invalid, "\"colour\""),
            ("memcache:", ErrorKind::Invalid, "memcache://"),
            ("memcache://u:hunter2@h:x", ErrorKind::Invalid, "port"),
            ("memcache://u:hunter2@127.0.0.1:1", ErrorKind::Unavailable, "cannot connect"),
        ] {
            let (kind, text) = refused(url).await;
            assert_eq!(kind, expected, "{url}: {text}");
            assert!(text.contains(hint) && !text.contains("hunter2"), "{url}: {text}");
        }
    }
}

#[cfg(not(feature = "zookeeper"))]
#[tokio::test]
async fn an_ensemble_whose_feature_is_off_names_the_feature() {
    let (kind, text) = refused("zookeeper://u:hunter2@h").await;
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("feature \"zookeeper\"") && !text.contains("hunter2"), "{text}");
}

#[cfg(feature = "zookeeper")]
#[tokio::test]
async fn a_zookeeper_url_reaches_the_backend_with_its_options() {
    for (url, kind, part) in [
        ("zookeeper://127.0.0.1:1/app?ttl=10s&prefix=a%2F", ErrorKind::Unavailable, "no server"),
        ("zookeeper://127.0.0.1:1?prefix=a", ErrorKind::Invalid, "must end in '/'"),
        ("zookeeper://127.0.0.1:1?colour=red", ErrorKind::Invalid, "\"colour\""),
        ("zookeeper://127.0.0.1:1?layout=other", ErrorKind::Invalid, "curator or kazoo"),
        ("zookeeper:", ErrorKind::Invalid, "zookeeper://"),
        ("zookeeper://u:hunter2@h:x", ErrorKind::Invalid, "port"),
    ] {
        let (found, text) = refused(url).await;
        assert_eq!(found, kind, "{url}: {text}");
        assert!(text.contains(part) && !text.contains("hunter2"), "{url}: {text}");
    }
}

#[cfg(not(feature = "quorum"))]
#[tokio::test]
async fn quorums_that_are_off_name_the_feature() {
    let (kind, text) = refused("quorum:?member=redis://u:hunter2@127.0.0.1:1").await;
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("feature \"quorum\" of lock-any") && !text.contains("hunter2"), "{text}");
}

#[cfg(feature = "quorum")]
mod quorum {
    use super::*;

    #[tokio::test]
    async fn a_quorum_is_made_of_urls() {
        for (url, hint) in [
            ("quorum:", "odd number"),
            ("quorum:?member=memory:&member=memory:", "odd number"),
            ("quorum:?member=memory:&member=memory:&member=memory:", "are the same server"),
            ("quorum://here?member=memory:", "write quorum:?member="),
            ("quorum:?member=memory:&colour=red", "no URL option \"colour\""),
            ("quorum:?member=memory:&restarts=maybe", "forget or remember"),
            ("quorum:?member=memory:&member_timeout=31days", "out of range"),
            ("quorum:?member=memory", "begins with a scheme"),
            ("quorum:?member=memory:%3Fttl=3s", "write it there"),
            ("quorum:?member=memory:%3Fcolour=red", "no URL option \"colour\""),
            ("quorum:?member=quorum:%3Fmember=memory:", "no quorum itself"),
            ("memory:?member=memory:", "no URL option \"member\""),
            // Nothing is asked before.
            ("quorum:?member=redis://a%3Fprefix=p:&member=redis://b&member=redis://c", "of prefix"),
            ("quorum:?member=rediss://a%3Fnames=exact&member=redis://b", "values of names"),
            ("quorum:?member=redis://a%3Fpolling_share=1s", "leave out polling_share"),
        ] {
            let (kind, text) = refused(url).await;
            assert_eq!(kind, ErrorKind::Invalid, "{url}: {text}");
            assert!(text.contains(hint), "{url}: {text}");
        }
        let locks = connect("quorum:?member=memory:&restarts=remember&ttl=2s").await.unwrap();
        let guard = locks.lock("of one").unwrap().acquire().await.unwrap();
        assert!(guard.valid_for().unwrap() <= Duration::from_secs(2));
        guard.release().await.unwrap();
    }

    #[tokio::test]
    async fn leases_are_as_long_as_the_url_allows() {
        let usual = connect("quorum:?member=memory:").await.unwrap();
        assert_eq!(usual.capabilities().ttl_max, Duration::from_secs(60));
        let longer = connect("quorum:?member=memory:&max_ttl=5m").await.unwrap();
        assert_eq!(longer.capabilities().ttl_max, Duration::from_secs(300));
    }

    #[cfg(feature = "redis")]
    #[tokio::test]
    async fn members_are_named_without_their_credentials() {
        let urls = [1, 2, 3].map(|port| format!("redis://u:hunter2@127.0.0.1:{port}?prefix=a:"));
        let error = lock_any::redlock(&urls).await.unwrap_err();
        let text = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{text}");
        assert!(text.contains("member 3 (redis://127.0.0.1:3)"), "{text}");
        assert!(!format!("{text} {error:?}").contains("hunter2"), "{text}");
        let urls = urls.map(|url| url.replace("a:", "a"));
        let error = lock_any::redlock(&urls).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        let error = lock_any::redlock(["redis://u:hunter2"]).await.unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(text.contains("member 1 (redis:)") && !text.contains("hunter2"), "{text}");
    }
}

#[cfg(feature = "redis")]
mod redis {
    use super::*;

    #[tokio::test]
    async fn the_backend_reads_what_is_left_of_the_url() {
        // Port 1: no server listens there.
        for (url, expected, hint) in [
            ("redis://127.0.0.1:1?ttl=10s&prefix=a%3A", ErrorKind::Unavailable, "cannot connect"),
            ("redis://127.0.0.1:1?prefix=a", ErrorKind::Invalid, "must end in ':'"),
            ("redis://127.0.0.1:1?colour=red", ErrorKind::Invalid, "\"colour\""),
            ("redis:", ErrorKind::Invalid, "redis://"),
            ("redis://u:hunter2@h:x", ErrorKind::Invalid, "port"),
            ("redis+unix:///nosuch?password=hunter2", ErrorKind::Unavailable, "cannot connect"),
            (
                "redis+sentinel://u:hunter2@127.0.0.1:1",
                ErrorKind::Invalid,
                "what the sentinels watch",
            ),
            (
                "redis+sentinel://u:hunter2@127.0.0.1:1/locks?sentinel_password=hunter2",
                ErrorKind::Unavailable,
                "cannot connect",
            ),
        ] {
            let (kind, text) = refused(url).await;
            assert_eq!(kind, expected, "{url}: {text}");
            assert!(text.contains(hint) && !text.contains("hunter2"), "{url}: {text}");
        }
    }
    #[tokio::test]
    async fn the_longest_lease_is_one_that_the_backend_can_carry() {
        let (kind, text) = refused("redis://127.0.0.1:1?max_ttl=5ms").await;
        assert_eq!(kind, ErrorKind::Invalid);
        assert!(text.contains("from 10ms to 365days"), "{text}");
        let (kind, _) = refused("redis://127.0.0.1:1?max_ttl=10ms").await;
        assert_eq!(kind, ErrorKind::Unavailable);
    }

    #[tokio::test]
    async fn certificates_need_an_encrypted_connection() {
        for url in ["redis://127.0.0.1:1?ca=/x", "redis+unix:///s?cert=/x&key=/x"] {
            let (kind, text) = refused(url).await;
            assert_eq!(kind, ErrorKind::Invalid);
            assert!(text.contains("rediss://"), "{text}");
        }
    }

    #[cfg(not(feature = "tls"))]
    #[tokio::test]
    async fn encryption_that_is_off_names_the_feature() {
        let (kind, text) = refused("rediss://u:hunter2@127.0.0.1:1?ca=/x").await;
        assert_eq!(kind, ErrorKind::Unsupported);
        assert!(text.contains("feature \"tls\" of lock-any"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }

    #[cfg(feature = "tls")]
    #[tokio::test]
    async fn files_with_certificates_are_named_by_the_url() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("a b");
        std::fs::write(&at, "nonsense").unwrap();
        let encoded = at.to_str().unwrap().replace(' ', "%20");
        for (options, hint) in [
            (format!("ca={encoded}"), "holds no certificate in PEM"),
            (format!("ca={encoded}x"), "No such file"),
            (format!("cert={encoded}&key={encoded}"), "holds no certificate in PEM"),
            (format!("cert={encoded}"), "cert and key go together"),
        ] {
            let (kind, text) = refused(&format!("rediss://u:hunter2@127.0.0.1:1?{options}")).await;
            assert_eq!(kind, ErrorKind::Invalid, "{text}");
            assert!(text.contains(hint) && !text.contains("hunter2"), "{options}: {text}");
        }
        let url = "rediss://u:hunter2@127.0.0.1:1?prefix=a%3A&max_ttl=1h";
        assert_eq!(refused(url).await.0, ErrorKind::Unavailable);
    }
}

#[test]
fn the_prefix_of_a_url_is_read_without_a_connection() {
    for (url, prefix) in [
        ("redis://u:hunter2@h?prefix=app:", Some("app:")),
        ("redis+cluster://h?prefix=%7Bapp%7D:&order=any", Some("{app}:")),
        ("redis://h?prefix=", None),
        ("redis://h", None),
        ("gopher://h?prefix=app:", None),
    ] {
        assert_eq!(lock_any::prefix_of(url).as_deref(), prefix, "{url}");
    }
}
