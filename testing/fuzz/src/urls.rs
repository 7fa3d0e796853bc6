//! The URLs of lock spaces.

use std::fmt::Debug;
use std::time::Duration;

use lock_core::url::Url;
use lock_core::{Error, ErrorKind};

/// A part of the password in each URL with credentials.
const SECRET: &str = "hunter2";

/// Parses a text as a URL, and as the password of a URL.
pub(crate) fn url(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if !text.contains(SECRET) {
        parse(text);
    }
    password(text);
}

fn parse(text: &str) {
    for shown in shown(text) {
        assert!(shown.len() < 64 + 16 * text.len().max(64), "{shown}");
    }
    if let Ok(Some(ttl)) = lock_any::ttl_of(text) {
        let longest = Duration::from_secs(365 * 24 * 3600);
        assert!((Duration::from_millis(1)..=longest).contains(&ttl), "{ttl:?}");
    }
    let _ = lock_any::directory_of(text);
    let Ok(url) = Url::parse(text) else { return };
    assert_eq!(url.scheme(), url.scheme().to_ascii_lowercase());
    for host in url.authority(1).into_iter().flat_map(|authority| authority.hosts) {
        assert!(host.port != 0 && !host.name.is_empty(), "{host}");
        // A zone may look like an escape.
        if !host.name.contains('%') {
            let again = Url::parse(&format!("x://{host}")).and_then(|url| url.authority(1));
            assert_eq!(again.expect("it is a host").hosts, [host]);
        }
    }
}

/// Puts a text into the password of URLs, as it is: users forget to encode it. No error and no
/// configuration shows it.
fn password(text: &str) {
    let (before, after) = text.split_once('|').unwrap_or((text, ""));
    // The first part of such a text reads as a password, and the second one as options.
    if text.split_once('?').is_some_and(|(start, _)| start.contains('@')) {
        return;
    }
    for scheme in ["redis", "redis+sentinel", "redis+cluster", "zookeeper", "memcache"] {
        let url = format!("{scheme}://u:{before}{SECRET}{after}@h");
        // Without a host, the credentials stand for one.
        let bare = url.trim_end_matches("@h");
        let is_refused =
            !text.contains('@') && Url::parse(bare).and_then(|url| url.authority(1)).is_err();
        let bare_member = is_refused.then(|| quorum_of(bare));
        for url in [Some(url.clone()), Some(quorum_of(&url)), bare_member].into_iter().flatten() {
            for shown in shown(&url) {
                assert!(!shown.contains(SECRET), "{url}: {shown}");
            }
        }
    }
}

/// Returns the URL of a quorum with this member.
fn quorum_of(member: &str) -> String {
    let escapes = [("%", "%25"), ("&", "%26"), ("#", "%23"), ("@", "%40")];
    let member = escapes.iter().fold(member.to_owned(), |url, (c, code)| url.replace(c, code));
    format!("quorum:?member={member}&member=redis://a&member=redis://b")
}

/// Returns the texts that each parser of URLs may show.
fn shown(url: &str) -> Vec<String> {
    vec![
        text(lock_any::fuzzing::parse(url)),
        text(lock_any::ttl_of(url)),
        text(Url::parse(url)),
        text(Url::parse(url).and_then(|url| url.authority(1))),
        text(lock_redis::Config::new(url)),
        text(lock_zookeeper::Config::new(url)),
        text(lock_memcache::Config::new(url)),
    ]
}

fn text(parsed: Result<impl Debug, Error>) -> String {
    match parsed {
        Ok(parsed) => format!("{parsed:?}"),
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Unsupported), "{error}");
            format!("{error} {error:?}")
        }
    }
}
