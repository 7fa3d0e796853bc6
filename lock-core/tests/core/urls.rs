//! URLs of lock spaces: their parts, and the errors of those that name no space.

use std::time::Duration;

use lock_core::url::{Authority, CertificateFiles, Url};
use lock_core::{Error, ErrorKind};
use proptest::prelude::*;

fn url(text: &str) -> Url {
    Url::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn authority(text: &str) -> Result<Authority, Error> {
    Url::parse(text)?.authority(7)
}

#[track_caller]
fn is_invalid<T>(result: Result<T, Error>, hint: &str) {
    let error = result.err().unwrap_or_else(|| panic!("it should be refused: {hint}"));
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains(hint), "{error}");
}

#[test]
fn schemes_and_locations_are_told_apart() {
    for (text, scheme, location) in [
        ("memory:", "memory", ""),
        ("MEMORY://", "memory", "//"),
        ("redis+unix:///a%20b?db=1", "redis+unix", "///a%20b"),
        ("x-1.2:a:b", "x-1.2", "a:b"),
    ] {
        let url = url(text);
        assert_eq!((url.scheme(), url.location()), (scheme, location), "{text}");
    }
    for text in ["", "memory", ":", "/var/lock", "1:", "a b:"] {
        is_invalid(Url::parse(text), "begins with a scheme");
    }
    is_invalid(Url::parse("memory:#x"), "no fragment");
    is_invalid(Url::parse("memory:?x=#"), "no fragment");
}

#[test]
fn authorities_are_taken_apart() {
    for (text, credentials, hosts, path) in [
        ("s://h", None, "h:7", ""),
        ("s://h/", None, "h:7", ""),
        ("s://H:65535/a/b%2Fc", None, "H:65535", "a/b/c"),
        (
            "s://b,a-_.1:2,[::1],[fe80::1%25eth0]:3",
            None,
            "b:7 a-_.1:2 [::1]:7 [fe80::1%eth0]:3",
            "",
        ),
        ("s://:p%40@h", Some(("", "p@")), "h:7", ""),
        ("s://u%3A:p:q@r@h", Some(("u:", "p:q@r")), "h:7", ""),
    ] {
        let found = authority(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let user = found.credentials.as_ref().map(|(user, password)| (&**user, &**password));
        assert_eq!(user, credentials, "{text}");
        let shown: Vec<String> = found.hosts.iter().map(ToString::to_string).collect();
        assert_eq!((shown.join(" ").as_str(), found.path.as_str()), (hosts, path), "{text}");
    }
}

#[test]
fn bad_authorities_say_what_to_do() {
    for (text, hint) in [
        ("s:h", "write s://host"),
        ("s:/h", "write s://host"),
        ("s://u@h", "user:password"),
        ("s://u:%ff@h", "must be UTF-8"),
        ("s://h:0", "up to 65535"),
        ("s://h:65536", "up to 65535"),
        ("s://h:", "up to 65535"),
        ("s://h:x", "up to 65535"),
    ] {
        is_invalid(authority(text), hint);
    }
    for hosts in [
        "", ",", "a,", "a,,b", "a b", "a%20b", "a%0d", "::1", "[]", "[::1", "[::1]7", "[h]",
        "[::g]",
    ] {
        is_invalid(authority(&format!("s://{hosts}")), "[brackets]");
    }
}

#[test]
fn paths_are_absolute() {
    for (text, path) in
        [("s:", None), ("s://", None), ("s:/a%20b", Some("/a b")), ("s:///a/b", Some("/a/b"))]
    {
        assert_eq!(url(text).path().unwrap().as_deref(), path, "{text}");
    }
    for text in ["s:a", "s://host/a"] {
        is_invalid(url(text).path(), "absolute path: write s:///path");
    }
}

#[test]
fn options_are_taken_once_and_none_is_left() {
    let mut given = url("s:?a=1&&b_c=x%26y&d=&e=1h%2030m");
    assert_eq!(given.take("a").unwrap().as_deref(), Some("1"));
    assert_eq!(given.take("a").unwrap(), None);
    assert_eq!(given.take("b_c").unwrap().as_deref(), Some("x&y"));
    is_invalid(given.no_more_options(), "the s: backend has no URL option \"d\"");
    assert_eq!(given.take("d").unwrap().as_deref(), Some(""));
    assert_eq!(given.take_duration("e").unwrap(), Some(Duration::from_secs(5400)));
    assert_eq!(given.take_duration("e").unwrap(), None);
    given.no_more_options().unwrap();

    let mut given = url("s:?m=1&a=x&m=2&m=1");
    assert_eq!(given.take_all("m").unwrap(), ["1", "2", "1"]);
    assert_eq!(given.take_all("m").unwrap(), [""; 0]);
    assert_eq!(given.take("a").unwrap().as_deref(), Some("x"));
}

#[test]
fn bad_options_say_what_to_do() {
    for (query, hint) in [
        ("=1", "no proper name"),
        ("A=1", "no proper name"),
        ("a%20=1", "no proper name"),
        ("a=%ff", "must be UTF-8"),
    ] {
        is_invalid(Url::parse(&format!("s:?{query}")), hint);
    }
    is_invalid(url("s:?a").take("a"), "\"a\" has no value");
    for twice in ["s:?a=1&a=2", "s:?a&a=2"] {
        is_invalid(url(twice).take("a"), "\"a\" is given twice");
    }
    is_invalid(url("s:?a=1&a").take_all("a"), "\"a\" has no value");
    is_invalid(url("s:?a").no_more_options(), "write ?name=value");
    for span in ["0s", "-5s", "soon", "5", "99999999999999999999s"] {
        is_invalid(url(&format!("s:?a={span}")).take_duration("a"), "write 500ms, 30s or 2h");
    }
}

#[test]
fn certificates_go_with_encryption_and_keys() {
    let files = |text: &str| url(text).take_certificate_files("s+tls");
    assert_eq!(files("s://h").unwrap(), CertificateFiles::default());
    let all = files("s+tls://h?ca=/a%20b&cert=/c&key=/d").unwrap();
    assert_eq!(all.authorities.as_deref(), Some("/a b"));
    assert_eq!(all.identity, Some(("/c".into(), "/d".into())));
    for name in ["ca", "cert", "key"] {
        let error = files(&format!("s://h?{name}=/x")).unwrap_err().to_string();
        assert!(error.contains(&format!("option {name}")) && error.contains("s+tls://"), "{error}");
    }
    for name in ["cert", "key"] {
        is_invalid(files(&format!("s+tls://h?{name}=/x")), "cert and key go together");
    }
}

#[test]
fn a_password_with_a_question_mark_is_not_repeated() {
    for part in ["hunter", "a=hunter", "hunter=a", "a&hunter", "hunter=1&hunter=2"] {
        let error = Url::parse(&format!("s://user:se?{part}@host")).unwrap_err().to_string();
        assert!(error.contains("%3F") && !error.contains("hunter"), "{error}");
    }
    let url = url("s://user:hunter2@host?a=hunter2");
    let shown = format!("{url:?} {:?}", url.authority(7).unwrap());
    assert!(shown.contains("host") && !shown.contains("hunter2"), "{shown}");
}

proptest! {
    #[test]
    fn any_input_parses_or_is_refused(text in "[a:/@?&=%,#\\[\\]0-9é-]{0,30}") {
        if let Ok(mut url) = Url::parse(&text) {
            let _ = (url.authority(7), url.path(), url.take("a"), url.no_more_options());
        }
    }

    #[test]
    fn a_written_url_parses(
        user in "[^\\x00]{0,10}", password in "[^\\x00]{0,10}", port in 1..=u16::MAX, value in ".{0,10}",
    ) {
        let encoded = |text: &str| -> String { text.bytes().map(|b| format!("%{b:02x}")).collect() };
        let (u, p, v) = (encoded(&user), encoded(&password), encoded(&value));
        let mut read = url(&format!("s://{u}:{p}@h:{port}?a={v}"));
        let found = read.authority(7).unwrap();
        prop_assert_eq!(found.credentials, Some((user, password)));
        prop_assert_eq!(found.hosts[0].port, port);
        prop_assert_eq!(read.take("a").unwrap(), Some(value));
    }
}
