//! The text of `--help` and of the manual pages below the options.

pub(crate) const AFTER_ALL: &str = "\
A lock is a lease on a name, and is shared by all clients of the same backend. The default one \
needs no server: file:, for the processes of this user on this host, in /run/lock/locks-<uid>. Other users \
have other locks there; file:///dir?share=group is for the users in the group of a directory that root has \
made by: install -d -o root -g GROUP -m 3770 /dir. Redis and others lock among hosts. lockctl \
refuses a verb that its backend does not support.

Options follow the URL as ?ttl=30s&timeout=5s. A URL can hold a password, and other users see the \
arguments of a command: put such a URL into $LOCK_BACKEND.

Durations are written as 500ms, 30s, 2h or '1h 30m'; a plain number is seconds.

Examples:
  lockctl run nightly -- ./backup.sh
  lockctl run --no-wait --min-hold 50s every-minute -- ./job.sh
  lockctl --backend redis://locks.example.com inspect nightly

Exit status:
  0   done; run: the command's own, 128+n if signal n ended it
  1   inspect: the lock is free; break: there was nothing to end
  64  wrong usage, name or URL, or not supported by the backend
  69  the backend is unavailable, or refuses
  70  internal error
  75  not acquired in time (see -E)
  76  the lock was lost; renew and release: it is not held
  77  credentials or rights are missing
  126 the command cannot be run
  127 there is no such command";

pub(crate) const AFTER_RUN: &str = "\
The command runs in a process group of its own, with LOCK_NAME, LOCK_OWNER and, where the backend has \
fencing tokens, LOCK_FENCING_TOKEN in its environment. Signals are forwarded to the group. Give the \
token along with each write to a resource that checks it: no lock can undo a write that is on its way.

If the lease cannot be renewed, the group gets SIGTERM one grace before the lease ends and SIGKILL \
shortly before it does. Where leases are shorter than the ttl (with zookeeper: they are the session's), the \
grace is at most an eighth of one. If the lock is known to be lost, it gets SIGKILL at once.

If lockctl itself is killed, its command does not run on unlocked: with file: it keeps the lock until \
it ends, with other backends it is killed as well. Not covered: processes that the command has started (with \
other backends than file: it is not killed along with lockctl) or left behind, what moved to another \
process group (as the command of a lockctl with file: in a script does), set-user-id commands, which cannot be killed, with file: a command that closes inherited descriptors \
(sudo and daemons do), and a lockctl that is stopped (SIGSTOP) for longer than its lease \
while its command runs: it kills the command when it resumes.

To hold two locks, let one lockctl run the other: lockctl run a -- lockctl run b -- CMD, in the same order \
everywhere. The same lock twice waits for itself, for ever unless --wait limits it. SIGPIPE ends the command \
even if lockctl was started with it ignored.

With --min-hold, a job that starts on many hosts at once, as their crontabs say, runs once, although \
their clocks differ by less than that: the lock stays held for that long from its acquisition. Where the backend can enforce \
that by itself (redis: can), lockctl ends with its command; elsewhere it stays until then, and a signal \
ends it earlier. A crash frees the lock when the lease expires, or at once with file:.

With file:, deleting the lock file by hand, or a break, frees the lock at once. lockctl notices that \
at once, too, or within a second where the limit on inotify instances is reached. Waiters are served first come, first served; flock(1) and --no-wait take any free lock.

A wait of more than a moment is shown on a terminal, and with -v elsewhere: who holds the lock, and for how \
long. With --json, each line on stderr that begins with '{' is an event: event (waiting, acquired or lost), \
time and name; waited_ms and holders (as in inspect --json) while it waits, waited_ms and fencing_token when \
it has acquired, why when it has lost. The command writes to the same stderr.

Examples:
  lockctl run nightly -- ./backup.sh
  lockctl run --no-wait deploy -- make deploy || echo 'another deployment runs'
  lockctl run --wait 10s -E 0 cache -- ./refresh-cache
  * * * * * lockctl run --no-wait --min-hold 50s every-minute -- ./job.sh

Exit status:
  the command's own, 128+n if signal n ended it, or lockctl
  64  wrong usage, name or URL, or not supported by the backend
  69  the backend is unavailable, or refuses
  70  internal error
  75  not acquired in time (see -E)
  76  the lock was lost
  77  credentials or rights are missing
  126 the command cannot be run
  127 there is no such command";

pub(crate) const AFTER_ACQUIRE: &str = "\
Prints one line of JSON: name, owner, fencing_token (a string, or null where the backend has none) and \
expires_in_ms. From then on the lock is held until it is released, broken, or its lease ends: only \
lockctl renew renews it. So stop working in time: expires_in_ms counts from when the line was \
printed, and excludes the margin for clock differences. Where a command can be run under the lock, \
lockctl run is safer: it renews, and ends the command if the lock is lost.

The owner id is the right to renew and release the lock. Any process that sees it can do so; inspect and list \
show its first eight digits only.

If lockctl is killed before the line is printed, the lock may stay held until its lease expires.

Needs a backend with detached leases (file:, redis: and memcache: have them). With file:, the lease \
stands in the lock file: it binds all clients of file:, flock(1) does not see it, and a \
restart of the machine ends it.

Examples:
  lock=$(lockctl acquire --ttl 10m deploy) || exit
  export LOCK_OWNER=$(jq -r .owner <<<\"$lock\")
  lockctl renew --ttl 10m deploy
  lockctl release deploy

Exit status:
  0   the lock is held
  64  wrong usage, name or URL, or not supported by the backend
  69  the backend is unavailable, or refuses
  70  internal error, or the line cannot be written: the lock is released
  75  not acquired in time (see -E)
  76  the lease ended before the line was printed
  77  credentials or rights are missing";

pub(crate) const AFTER_RENEW: &str = "\
Prints one line of JSON: name and expires_in_ms, which counts as that of acquire. The lease ends that long from now, or when \
it would have ended anyway, whichever is later.

Other users see the arguments of a command: put the owner id into $LOCK_OWNER rather than after --owner.

Examples:
  lockctl renew --ttl 10m deploy                                   # with $LOCK_OWNER
  lockctl renew --owner 6f1ed002ab5595859014ebf0951522d9 deploy

Exit status:
  0   held, and longer than before
  64  wrong usage, name or URL, or not supported by the backend
  69  the backend is unavailable, or refuses: the lease may have been renewed
  76  not held by this owner: it has ended, or was released or broken
  77  credentials or rights are missing";

pub(crate) const AFTER_RELEASE: &str = "\
Releases the hold of this owner only: a late release does not affect a later holder.

Other users see the arguments of a command: put the owner id into $LOCK_OWNER rather than after --owner.

Examples:
  lockctl release deploy                                           # with $LOCK_OWNER
  lockctl release --owner 6f1ed002ab5595859014ebf0951522d9 deploy

Exit status:
  0   it was held until now
  64  wrong usage, name or URL, or not supported by the backend
  69  the backend is unavailable, or refuses: try again, or the lease ends it
  76  not held by this owner: it has ended, or was released or broken
  77  credentials or rights are missing";

pub(crate) const AFTER_INSPECT: &str = "\
Shows, as far as the backend knows: who holds the lock, since when, when the lease ends unless it is \
renewed, the fencing token, and the number of waiters. The holder is shown by its label (host and \
process id: of lockctl with run, of what started lockctl with acquire) and the first eight digits of its \
owner id. Takes no lock and delays no client. The answer may be \
outdated a moment later, so it is no way to decide whether to begin.

With --json, one line: name, held, holders (a list, each with owner_short, label, held_for_ms, \
expires_in_ms and fencing_token, which may be null; and with owner if asked for), waiting (a number, or \
null), key (on redis and memcache: the key that clients of other libraries lock) and with file: directory, \
which other users may not share. A name with other characters than printable ASCII is encoded in the key; \
with redis, names=exact in the URL carries it byte for byte.

Examples:
  lockctl inspect nightly
  lockctl inspect --json nightly | jq .holders[0].expires_in_ms

Exit status:
  0   held
  1   free
  64  wrong usage, name or URL, or not supported by the backend
  69  the backend is unavailable, or refuses
  77  credentials or rights are missing";

pub(crate) const AFTER_LIST: &str = "\
One lock on a line, sorted by name: the name in quotes, and who holds it. With --json, lines as those of \
inspect --json. All of them are shown, page by page: locks that come and go meanwhile may be in it or not.

Needs a backend that knows its locks.

Examples:
  lockctl list
  lockctl list --prefix jobs/
  lockctl list --json | jq -r 'select(.holders[0].held_for_ms > 3600000).name'

Exit status:
  0   all are shown, even if there are none
  64  wrong usage or URL, or not supported by the backend
  69  the backend is unavailable, or refuses
  77  credentials or rights are missing";

pub(crate) const AFTER_BREAK: &str = "\
The next waiter gets the lock at once. The old holder is notified when it renews: until then it \
continues, for a third of its lease or, if it is stopped or partitioned, until it resumes. Only fencing tokens \
keep its writes out. So make sure that it has exited, or wait for its lease: inspect shows when that expires.

With file:, a process that holds a lock has no lease that ends: rather kill it, and its command with it, \
which frees the lock at once. A break leaves the two with the lock file that they have locked, and puts a \
new one in its place. lockctl run notices and kills its command, at once or after a third of its ttl; until \
then both work. A command whose lockctl is gone is never notified \
(and inside a container it has no owner id to compare any more: inspect shows its process, kill that).

With --force, lockctl inspects the lock, ends the hold of just that holder, and names it. \
With --owner, it ends that owner's hold, and a newer one is left alone. The holders of other lock \
libraries have no owner id that could be compared: end their holds with their own tools. If it is not known whether the hold was \
ended, that is an error and says so: inspect shows who holds the lock now.

Examples:
  lockctl inspect nightly && lockctl break --force nightly
  lockctl break --owner \"$(lockctl inspect --json --show-owner nightly | jq -r .holders[0].owner)\" nightly

Exit status:
  0   ended
  1   there was nothing to end: the lock is free, or held by another owner
  64  wrong usage, name or URL, or not supported by the backend
  69  the backend is unavailable, or refuses
  77  credentials or rights are missing";

pub(crate) const AFTER_COMPLETIONS: &str = "\
Examples:
  lockctl completions bash >~/.local/share/bash-completion/completions/lockctl
  lockctl completions zsh >~/.zfunc/_lockctl                       # with ~/.zfunc in $fpath
  lockctl completions fish >~/.config/fish/completions/lockctl.fish";

pub(crate) const AFTER_MAN: &str = "\
Examples:
  lockctl man run | man -l -
  lockctl man >/usr/local/share/man/man1/lockctl.1
  lockctl man run >/usr/local/share/man/man1/lockctl-run.1";
