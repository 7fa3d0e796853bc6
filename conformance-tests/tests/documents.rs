//! The documents agree with the code: the laws in LAWS.md, the capability table in
//! docs/backends.md. With `BLESS=1` the generated parts are written instead of compared.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use lock_conformance::{Law, Level, laws, sabotage};
use lock_core::{Backend, Capabilities, Locker, Memory, Support, Takeover};
use test_servers::{Memcached, MemcachedOptions, Redis, RedisOptions, ZooKeeper, ZooKeeperOptions};

/// Replaces the text between the two marks of `part` in `file`, or compares it.
fn generated(file: &str, part: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let document = std::fs::read_to_string(&path).expect("the document is there");
    let (open, close) =
        (format!("<!-- {part}: generated -->\n"), format!("<!-- end of {part} -->"));
    let begin = document.find(&open).unwrap_or_else(|| panic!("{file} has no {open}")) + open.len();
    let end =
        begin + document[begin..].find(&close).unwrap_or_else(|| panic!("{file} has no {close}"));
    if std::env::var_os("BLESS").is_some() {
        let blessed = format!("{}{text}{}", &document[..begin], &document[end..]);
        std::fs::write(&path, blessed).expect("the document can be written");
    } else {
        assert!(
            &document[begin..end] == text,
            "{file} is out of date; write it anew with: BLESS=1 cargo test -p lock-conformance --test documents"
        );
    }
}

fn caught(law: &Law) -> Vec<&'static str> {
    let catching = |saboteur: &&sabotage::Saboteur| saboteur.caught_by.contains(&law.number);
    sabotage::all().iter().filter(catching).map(|saboteur| saboteur.name).collect()
}

#[test]
fn laws_checks_and_saboteurs_correspond() {
    let mut numbers = BTreeSet::new();
    let mut names = BTreeSet::new();
    for law in laws::all() {
        assert!(numbers.insert(law.number), "law {} is there twice", law.number);
        assert!(names.insert(law.name), "{} is there twice", law.name);
        assert!(
            !law.promise.is_empty() && !law.because.is_empty(),
            "law {} says nothing",
            law.number
        );
        assert!(
            !caught(law).is_empty(),
            "law {} has no saboteur: does its check check?",
            law.number
        );
    }
    let mut saboteurs = HashMap::new();
    for saboteur in sabotage::all() {
        assert!(saboteurs.insert(saboteur.name, ()).is_none(), "{} is there twice", saboteur.name);
        assert!(!saboteur.caught_by.is_empty(), "{} is caught by nothing", saboteur.name);
        for number in saboteur.caught_by {
            assert!(numbers.contains(number), "{} is caught by no law {number}", saboteur.name);
        }
    }
    assert!(saboteurs.len() >= 25);
}

#[test]
fn laws_md_holds_the_laws() {
    let mut text = String::new();
    for law in laws::all() {
        let title = law.name.replace('_', " ");
        let level = match law.level {
            Level::Must => "must",
            Level::IfDeclared => "if declared",
            Level::Stochastic => "must, stochastic",
        };
        let saboteurs = caught(law).join("`, `");
        writeln!(text, "\n### {} {title}\n", law.number).unwrap();
        writeln!(text, "*{level}.* {}\n", law.promise).unwrap();
        writeln!(text, "Because: {}\n", law.because).unwrap();
        writeln!(text, "Caught: `{saboteurs}`").unwrap();
    }
    text.push('\n');
    generated("LAWS.md", "laws", &text);
}

#[test]
fn backends_and_comparison_hold_the_capabilities() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut columns = runtime.block_on(declared());
    generated("docs/comparison.md", "capabilities", &table(&columns));
    // A quorum declares the capabilities of its members, and its own chapter explains it.
    columns.retain(|caps| caps.backend != "quorum");
    generated("docs/backends.md", "capabilities", &table(&columns));
}

/// Returns the declarations of each backend, on real servers.
async fn declared() -> Vec<Capabilities> {
    // Not on tmpfs, which survives no restart.
    let file = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let servers = [(); 3].map(|()| Redis::start(RedisOptions::new()));
    let redis = lock_redis::Redis::connect(&*servers[0].url()).await.unwrap();
    let ensemble = ZooKeeper::start(&ZooKeeperOptions::new());
    let zookeeper = lock_zookeeper::ZooKeeper::connect(ensemble.url()).await.unwrap();
    let server = Memcached::start(MemcachedOptions::new());
    let memcached = lock_memcache::Memcached::connect(server.url()).await.unwrap();
    let mut quorum = lock_quorum::Quorum::builder();
    for server in &servers {
        quorum = quorum.member(lock_redis::Redis::connect(&*server.url()).await.unwrap());
    }
    // These servers have not been running for as long as a quorum waits for otherwise.
    let quorum = quorum.members_remember().build().await.unwrap();
    vec![
        Memory::new().capabilities(),
        lock_file::FileLocks::at(file.path()).unwrap().capabilities(),
        redis.capabilities(),
        zookeeper.capabilities(),
        memcached.capabilities(),
        quorum.capabilities(),
    ]
}

/// Returns a table with a column for each of them.
fn table(columns: &[Capabilities]) -> String {
    let row = |what: &str, cell: &dyn Fn(&Capabilities) -> String| {
        let cells: Vec<String> = columns.iter().map(cell).collect();
        format!("| {what} | {} |\n", cells.join(" | "))
    };
    let mut text = row("", &|caps| format!("**{}**", caps.backend));
    text += &format!("|---{}|\n", "|---".repeat(columns.len()));
    text += &row("excludes", &|caps| format!("{:?}", caps.reach).to_lowercase());
    text += &row("fencing tokens", &|caps| format!("{:?}", caps.fencing).to_lowercase());
    text += &row("order of waiters", &|caps| match caps.order {
        lock_core::Order::PerProcess => "first come, first served in one process".into(),
        lock_core::Order::Fifo => "first come, first served".into(),
    });
    text += &row("a held lock outlasts", &|caps| match caps.durability {
        lock_core::Durability::Advisory => "nothing: advisory".into(),
        lock_core::Durability::UntilRestart => "all but a restart".into(),
        lock_core::Durability::Durable => "a crash".into(),
    });
    text += &row("wake-up", &|caps| format!("{:?}", caps.wakeup).to_lowercase());
    text += &row("takeover after a crash", &|caps| match caps.takeover {
        Takeover::AtOnce => "at once".into(),
        Takeover::LeasePlus(slack) => format!("lease + {slack:?}"),
    });
    text += &row("ttl", &|caps| span(&default_ttl_range(caps)));
    text += &row("ttl, if `max_ttl` is raised", &|caps| span(&(caps.ttl_min..=caps.ttl_max)));
    for (what, support) in [
        ("detached holds", (|caps| caps.detached) as fn(&Capabilities) -> Support),
        ("minimum hold that outlives the process", |caps| caps.minimum_hold),
        ("late attempts refused", |caps| caps.late_attempts_refused),
        ("a holder is told at once of a removal", |caps| caps.loss_push),
        ("inspect", |caps| caps.inspecting),
        ("list", |caps| caps.listing),
        ("break", |caps| caps.breaking),
    ] {
        text += &row(what, &|caps| match support(caps) {
            Support::Present => "yes".into(),
            Support::Absent => "no".into(),
        });
    }
    text
}

/// Returns the leases that a locker with default settings accepts.
fn default_ttl_range(caps: &Capabilities) -> RangeInclusive<Duration> {
    let usual = Locker::new(Memory::new()).ttl_range();
    caps.ttl_min..=caps.ttl_max.min(*usual.end())
}

fn span(range: &RangeInclusive<Duration>) -> String {
    let hours = range.end().as_secs() / 3600;
    match hours {
        ..=24 => format!("{:?} to {hours} h", range.start()),
        _ => format!("{:?} to {} days", range.start(), hours / 24),
    }
}

/// Checks that the README's program is an example, line for line, so that it compiles.
#[test]
fn readme_shows_the_example() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |file: &str| std::fs::read_to_string(root.join(file)).expect("the file is there");
    let readme = read("README.md");
    let (_, block) = readme.split_once("```rust\n").expect("the README shows code");
    let (block, _) = block.split_once("```").expect("the block ends");
    let lines =
        |text: &str| text.lines().map(|line| format!("{}\n", line.trim())).collect::<String>();
    let example = lines(&read("lock-any/examples/quickstart.rs"));
    assert!(
        example.contains(&lines(block)),
        "README.md and lock-any/examples/quickstart.rs differ"
    );
}
