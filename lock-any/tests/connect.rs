//! URLs: what they name, and what is wrong with those that name nothing.

use std::time::Duration;

use lock_any::{ErrorKind, connect};

async fn refused(url: &str) -> (ErrorKind, String) {
    let error = connect(url).await.expect_err(url);
    (error.kind(), error.to_string())
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
    let locks =
        connect("memory:?ttl=300ms&timeout=1s&patience=1m&max_ttl=1h&label=web%2D1").await.unwrap();
    let guard = locks.lock("options").unwrap().acquire().await.unwrap();
    assert!(guard.valid_for().unwrap() <= Duration::from_millis(300));
    let state = locks.inspect(guard.name()).await.unwrap();
    assert_eq!(state.holders[0].label.as_ref().unwrap().as_str(), "web-1");
    let long = locks.lock("options").unwrap().ttl(Duration::from_secs(7200)).try_acquire().await;
    assert_eq!(long.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_url_that_cannot_be_understood_says_what_to_do() {
    for (url, hint) in [
        ("", "begins with a scheme"),
        ("memory", "begins with a scheme"),
        ("/var/lock", "begins with a scheme"),
        ("nosuch://host", "known are memory:, file:"),
        ("memory:here", "write memory:"),
        ("memory:?ttl", "has no value"),
        ("memory:?ttl=0s", "not a positive duration"),
        ("memory:?ttl=-5s", "not a positive duration"),
        ("memory:?ttl=soon", "write 500ms, 30s or 2h"),
        ("memory:?ttl=99999999999999999999s", "not a positive duration"),
        ("memory:?ttl=1ns", "out of range"),
        ("memory:?ttl=1year", "out of range"),
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
    for url in
        ["nosuch://user:hunter2@host", "memory://user:hunter2@host", "memory://hunter2?x=hunter2"]
    {
        let (_, text) = refused(url).await;
        assert!(!text.contains("hunter2"), "{text}");
    }
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
        let (kind, _) = refused(&format!("file://{}?colour=red", missing.display())).await;
        assert_eq!(kind, ErrorKind::Invalid);
        assert!(!missing.exists());
        let (_, text) = refused("file:locks").await;
        assert!(text.contains("absolute path"), "{text}");
        let (_, text) = refused("file://host/locks").await;
        assert!(text.contains("absolute path"), "{text}");
    }
}

#[cfg(not(feature = "file"))]
#[tokio::test]
async fn a_scheme_whose_feature_is_off_names_the_feature() {
    let (kind, text) = refused("file:").await;
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(text.contains("feature \"file\""), "{text}");
}
