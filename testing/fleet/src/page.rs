//! `docs/interop.md`, written from the record.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::clients::{CLIENTS, Client, Extent, Servers};
use crate::promises::PROMISES;
use crate::seen::{Record, Side};

const INTRODUCTION: &str = "\
# Other clients on the same locks

Lock clients of other projects beside ours, on the same Redis keys. Each row was seen: tests run
the real client, in the version that the table names, and check both ways. The clients are
installed from the package registries with pinned versions; those of Debian are its packages.

```sh
testing/fleet/setup            # needs Go, Node, Python and Maven; ./test installs Debian's clients
FLEET=all FLEET_SECONDS=60 FLEET_RECORD=testing/fleet/seen.jsonl \\
    cargo test -p lock-fleet --features __servers --test matrix -- --test-threads 4
BLESS=1 cargo test -p lock-fleet --test page    # writes this page
```

## One lock, one key

A lock is the key of its prefix and name. Both sides must use the same key:

* `prefix=` in our URL is the prefix that the client puts before its names. One that does not end in
  `:` or `/` needs `names=exact`, as `prefix=laravel_cache_&names=exact`.
* Without `names=exact`, a name with a space, a `%`, a character outside of ASCII, or more than 200
  bytes is encoded in our key, and both sides hold.
* A client with another type of value needs other keys, as [Redisson](coming-from.md#redisson)
  does. See the remarks.

Of two values in a cell, the first is with our holder, and the second with the client's. Under load,
two processes of each side increment a counter in a file, in two steps under the lock: no update was
lost, and no two holds overlapped. The loads ran one after the other on a quiet machine. It was busy
during the other checks, so compare their times within a row, and not between rows.

The order of waiters is ours alone: clients of other projects do not join our queue, they poll or
race. Our fencing tokens grow with each of our grants, also with other holders in between. The
other clients of these tables return no token that compares with ours.
";

const SHARES: &str = "
## Clients that poll

Beside a full queue of ours, a client that polls is seldom served: the lock passes from one of ours
to the next. With [`polling_share`](protocol/redis.md#polling_share) a release leaves the lock free
now and then. The same load, with the longest pause between two polls of each client as the share:

";

const FAULTS: &str = "
## Faults

In each of these checks the other side acquires the lock next, and keeps it: nothing that a late
holder sends has changed the value or the lease of the next one. The columns show the words of the
late holder.

* **Paused**: the process is stopped until its lease is over and the other side holds the lock. Then
  it is asked whether it holds the lock, and has to extend and to release it.
* **Reply lost**: the connection is cut after the server has granted the lock, before the reply. The
  client says *held*, *no* or *error*, and the lock may be left for its lease.
* **Reply late**: the reply to the grant arrives when the lease is over and the other side holds the
  lock. *Success* means that the call returns a lock.
* **Data lost**: the server has lost its data. The holder extends its lock; in a second run, after
  the other side has acquired it, it is asked, and releases.

*Unknown*: the client has no such call, or none that tells. *Error* and *no* are the right answers
of a holder that has lost its lock.

";

const PROMISES_BROKEN: &str = "
## Promises that other clients break

Each row was seen in the version of the tables above. The command shows it; `PART` stands for the
last column:

```sh
FLEET=all cargo test -p lock-fleet --features __servers --test matrix PART -- --nocapture
```

The first rows have the promise of the client's documentation, in other words, and where it is. A
client that says *no* afterwards knows that its lock has ended, if the program asks. That a returned
lock is held is a law of this library; few clients document the case.

";

const NOT_SEEN: &str = "
## Not seen

* Current versions of Laravel and Symfony, aioredlock on several servers, and Redisson's fair,
  read-write and other locks.
* Redis Cluster, failovers, and Redis 8.4, on which some clients use `DELEX`.
* Hosts whose clocks differ, except where a row names it.
* Short outages of the network around a renewal.
";

/// Returns the page.
#[must_use]
pub fn markdown(record: &Record) -> String {
    let mut page = INTRODUCTION.to_owned();
    let on = |servers| CLIENTS.iter().filter(move |client| client.servers == servers);
    page += "\n## One server\n\n";
    hand_overs(&mut page, record, on(Servers::One));
    page += "\n## Three servers\n\n`quorum:` beside clients that lock a majority of the same servers, \
             in the same order:\n`quorum:?member=redis://a&member=redis://b&member=redis://c`.\n\n";
    hand_overs(&mut page, record, on(Servers::Three));
    page += SHARES;
    shares(&mut page, record);
    page += FAULTS;
    faults(&mut page, record);
    page += PROMISES_BROKEN;
    promises(&mut page, record);
    not_run(&mut page, record);
    page += NOT_SEEN;
    page
}

fn line(page: &mut String, cells: &[&str]) {
    writeln!(page, "| {} |", cells.join(" | ")).expect("a string can be written");
}

fn heading(page: &mut String, cells: &[&str]) {
    line(page, cells);
    writeln!(page, "|{}", "---|".repeat(cells.len())).expect("a string can be written");
}

fn version<'a>(record: &'a Record, client: &'a Client) -> Option<&'a str> {
    record.of(client.name).next().map(|seen| seen.version.as_str())
}

fn hand_overs<'a>(
    page: &mut String,
    record: &Record,
    clients: impl Iterator<Item = &'static Client> + 'a,
) {
    heading(
        page,
        &[
            "client",
            "version",
            "our `prefix`",
            "excludes, both ways",
            "its waiters",
            "its waiter after our release",
            "our waiter after its release",
            "takeover from a killed holder, lease 2 s: its waiter; ours",
            "renewals keep the other out: ours; its",
            "grants under load, ours : its",
            "remark",
        ],
    );
    for client in clients {
        let Some(version) = version(record, client) else { continue };
        let seen = |check, holder| record.get(client.name, check, holder).unwrap_or("–");
        let both = |check| match (seen(check, Side::Ours), seen(check, Side::Theirs)) {
            (ours, theirs) if ours == theirs => ours.to_owned(),
            (ours, theirs) => format!("{ours}; {theirs}"),
        };
        let excludes = match client.extent {
            Extent::OtherKeys => {
                format!("**no**: {} if its request takes 30 ms", seen("slow_reply", Side::Ours))
            }
            _ => both("excludes"),
        };
        let prefix = if client.prefix.is_empty() { "" } else { &format!("`{}`", client.prefix) };
        line(
            page,
            &[
                client.name,
                version,
                prefix,
                &excludes,
                client.waits,
                seen("wakes", Side::Ours),
                seen("wakes", Side::Theirs),
                &both("killed"),
                &both("renewed"),
                seen("load", Side::Ours),
                client.remark,
            ],
        );
    }
}

fn shares(page: &mut String, record: &Record) {
    heading(
        page,
        &[
            "client",
            "`polling_share`",
            "grants without it, ours : its",
            "grants with it, ours : its",
            "waits of the client: median, 99th percentile, longest",
        ],
    );
    for client in CLIENTS {
        let with = record.get(client.name, "load_with_a_share", Side::Ours);
        let Some((grants, waits)) = with.and_then(|seen| seen.split_once("; ")) else { continue };
        let without = record.get(client.name, "load", Side::Ours).unwrap_or("–");
        line(page, &[client.name, client.share, without, grants, waits]);
    }
}

fn faults(page: &mut String, record: &Record) {
    const CHECKS: [&str; 4] = ["paused", "lost_reply", "late_reply", "lost_data"];
    heading(page, &["holder", "paused", "reply lost", "reply late", "data lost"]);
    for servers in [Servers::One, Servers::Three] {
        let clients = CLIENTS.iter().filter(|client| client.servers == servers);
        let ours = CHECKS.map(|check| {
            let all: BTreeSet<&str> = clients
                .clone()
                .filter_map(|client| record.get(client.name, check, Side::Ours))
                .collect();
            all.into_iter().collect::<Vec<_>>().join("; or ")
        });
        let name = if servers == Servers::One { "**ours**" } else { "**ours**, `quorum:`" };
        line(page, &[&[name], &ours.each_ref().map(String::as_str)[..]].concat());
        for client in clients {
            let cells = CHECKS.map(|check| record.get(client.name, check, Side::Theirs));
            if cells.iter().any(Option::is_some) {
                let cells = cells.map(|cell| cell.unwrap_or("–"));
                line(page, &[&[client.name], &cells[..]].concat());
            }
        }
    }
}

fn promises(page: &mut String, record: &Record) {
    heading(page, &["client", "promise", "events", "seen", "`PART`"]);
    let part = |client: &str, check: &str| format!("`{client}::{check}`");
    for promise in PROMISES {
        let seen = record.of(promise.client).find(|seen| seen.check == promise.check);
        let Some(seen) = seen else { continue };
        let part = part(promise.client, promise.seen_by());
        let promised = format!("{} ({})", promise.promise, promise.source);
        line(page, &[promise.client, &promised, promise.events, &seen.seen, &part]);
    }
    for client in CLIENTS {
        if let Some(seen) = record.get(client.name, "late_reply", Side::Theirs)
            && let Some(held) = seen.strip_prefix("success; held: ")
        {
            let seen = match held {
                "unknown" => "success".to_owned(),
                held => format!("success; asked then whether it holds the lock, it says {held}"),
            };
            let events = "the reply to the grant arrives after the lease, and another client holds";
            let part = part(client.name, "late_reply::theirs_first");
            line(page, &[client.name, "a lock that is returned is held", events, &seen, &part]);
        }
    }
    for client in CLIENTS {
        let seen = record.get(client.name, "paused", Side::Theirs);
        if seen.is_some_and(|seen| seen.starts_with("held: yes")) {
            let promise = "it tells whether the lock is held";
            let events =
                "the process is paused for longer than the lease, and another client holds";
            let part = part(client.name, "paused::theirs_first");
            let seen = "asked at once when it goes on, it may say yes";
            line(page, &[client.name, promise, events, seen, &part]);
        }
    }
}

fn not_run(page: &mut String, record: &Record) {
    let missing: Vec<_> = CLIENTS.iter().filter(|c| version(record, c).is_none()).collect();
    if missing.is_empty() {
        return;
    }
    page.push_str("\n## Not run\n\n");
    for client in missing {
        writeln!(page, "* {}", client.name).expect("a string can be written");
    }
}
