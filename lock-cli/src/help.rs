//! The text of `--help` and of the manual pages below the options.

pub(crate) const AFTER_ALL: &str = "\
A lock is a lease on a name, shared by all clients of the same backend. The default backend, \
file:, needs no server: it locks among the processes of this user on this host, in \
/run/lock/locks-<uid>. Other users have other locks there. file:///dir?share=group is for the \
users in the group of a directory that root has made by: install -d -o root -g GROUP -m 3770 \
/dir. Redis and the other servers lock among hosts. lockctl refuses a verb that its backend does \
not support.

Options follow the URL as ?ttl=30s&timeout=5s. A URL can contain a password, and other users see \
the arguments of a command: put such a URL into $LOCK_BACKEND.

Durations are written as 500ms, 30s, 2h or '1h 30m'; a plain number is seconds.

Examples:
  lockctl run nightly -- ./backup.sh
  lockctl run --no-wait --min-hold 50s every-minute -- ./job.sh
  lockctl --backend redis://locks.example.com inspect nightly
  lockctl doctor redis://locks.example.com

Exit status:
  0   done; run: the command's own status, 128+n if signal n ended it
  1   inspect: the lock is free; break: no hold was ended; doctor: a warning
  64  wrong usage, name or URL, or not supported by the backend
  69  the backend is unavailable, or refuses
  70  internal error
  75  not acquired in time (see -E)
  76  the lock was lost; renew and release: it is not held
  77  credentials or rights are missing
  126 the command cannot be run
  127 there is no such command";

pub(crate) const AFTER_RUN: &str = "\
The command runs in a process group of its own, with LOCK_NAME, LOCK_OWNER and, if the backend \
has fencing tokens, LOCK_FENCING_TOKEN in its environment. lockctl forwards signals to the \
group. Send the token with each write to a resource that checks it: no lock can stop a write \
that is already on its way.

If the lease cannot be renewed, the group gets SIGTERM one grace before the lease ends, and \
SIGKILL shortly before it ends. Where leases are shorter than the ttl (with zookeeper:, they are \
the session's), the grace is at most an eighth of one. If the lock is known to be lost, the \
group gets SIGKILL at once.

If lockctl itself is killed, its command does not continue without the lock: with file:, it \
keeps the lock until it ends; with other backends, it is killed as well. This does not cover \
processes that the command has started (with other backends than file:, they are not killed \
along with lockctl) or left behind. Nor does it cover processes that moved to another process \
group (as the command of a lockctl with file: in a script does), set-user-id commands, which \
cannot be killed, or, with file:, a command that closes inherited descriptors (sudo and daemons \
do). A lockctl that is stopped (SIGSTOP) for longer than its lease kills the command only when \
it resumes.

To hold two locks, let one lockctl run the other, in the same order everywhere: lockctl run a -- \
lockctl run b -- CMD. A lockctl inside another one with the same lock waits for itself, for ever \
unless --wait limits it. SIGPIPE ends the command even if lockctl was started with it ignored.

With --min-hold, a job that crontabs start on many hosts at once runs once, if the clocks of the \
hosts differ by less than that: the lock stays held for that long from its acquisition. If the \
backend can enforce that by itself (redis: can), lockctl ends with its command. Otherwise \
lockctl stays until then, and a signal ends it earlier. A crash frees the lock when the lease \
expires, or at once with file:.

With file:, deleting the lock file by hand or breaking the lock frees it at once. lockctl \
notices that at once, or within a second where the limit on inotify instances is reached. \
Waiters are served first come, first served; flock(1) and --no-wait take any free lock.

A backend that will be ready by itself is waited for as well, within --wait: a quorum whose \
members were restarted counts them after the longest lease. With --no-wait that is an error.

A wait of more than a moment is shown on a terminal, and elsewhere with -v: the holder of the \
lock, and for how long it has held it. With --json, each line on stderr that begins with '{' is \
an event. Its fields are event (waiting, acquired or lost), time and name; for waiting also \
waited_ms and holders (as in inspect --json), or why and retry_after_ms while the backend is not \
ready; for acquired waited_ms and fencing_token, and for \
lost why. The command writes to the same stderr.

Examples:
  lockctl run nightly -- ./backup.sh
  lockctl run --no-wait deploy -- make deploy || echo 'another deployment runs'
  lockctl run --wait 10s -E 0 cache -- ./refresh-cache
  * * * * * lockctl run --no-wait --min-hold 50s every-minute -- ./job.sh

Exit status:
  the command's own status, 128+n if signal n ended it or lockctl, or:
  64  wrong usage, name or URL, or not supported by the backend
  69  the backend is unavailable, or refuses
  70  internal error
  75  not acquired in time (see -E)
  76  the lock was lost
  77  credentials or rights are missing
  126 the command cannot be run
  127 there is no such command";

pub(crate) const AFTER_ACQUIRE: &str = "\
Prints one line of JSON: name, owner, fencing_token (a string, or null if the backend has none) \
and expires_in_ms. The lock is then held until it is released, broken, or its lease ends: only \
lockctl renew prolongs it. Stop working in time: expires_in_ms counts from the moment at which \
the line was printed, and excludes the margin for clock differences. If a command can do the \
work, lockctl run is safer: it renews the lease, and ends the command if the lock is lost.

The owner id is the right to renew and release the lock. Any process that has it can do so; \
inspect and list show its first eight digits only.

If lockctl is killed before it prints the line, the lock may stay held until its lease expires.

Needs a backend with detached leases (file:, redis: and memcache: have them). With file:, the \
lease is written into the lock file: it binds all clients of file:, flock(1) does not see it, \
and a restart of the machine ends it.

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
Prints one line of JSON: name and expires_in_ms, which counts as that of acquire. The lease then \
ends after the ttl, or when it would have ended anyway, whichever is later.

Other users see the arguments of a command: put the owner id into $LOCK_OWNER rather than after \
--owner.

Examples:
  lockctl renew --ttl 10m deploy                                   # with $LOCK_OWNER
  lockctl renew --owner 6f1ed002ab5595859014ebf0951522d9 deploy

Exit status:
  0   renewed
  64  wrong usage, name or URL, or not supported by the backend
  69  the backend is unavailable, or refuses: the lease may have been renewed
  76  not held by this owner: the lease has ended, or the lock was released or broken
  77  credentials or rights are missing";

pub(crate) const AFTER_RELEASE: &str = "\
Releases the hold of this owner only: a late release does not affect a later holder.

Other users see the arguments of a command: put the owner id into $LOCK_OWNER rather than after --owner.

Examples:
  lockctl release deploy                                           # with $LOCK_OWNER
  lockctl release --owner 6f1ed002ab5595859014ebf0951522d9 deploy

Exit status:
  0   released; it was held until now
  64  wrong usage, name or URL, or not supported by the backend
  69  the backend is unavailable, or refuses: try again, or the lease ends it
  76  not held by this owner: the lease has ended, or the lock was released or broken
  77  credentials or rights are missing";

pub(crate) const AFTER_INSPECT: &str = "\
Shows, as far as the backend knows: the holder, since when it holds the lock, when its lease \
expires unless it is renewed, its fencing token, and the number of waiters. The holder is shown \
by its label and the first eight digits of its owner id. The label is its host and process id: \
that of lockctl for run, that of the process that started lockctl for acquire. inspect takes no \
lock and delays no client. The answer may be outdated a moment later: do not decide by it \
whether to begin.

With --json, one line: name, held, holders (a list, each with owner_short, label, held_for_ms, \
expires_in_ms and fencing_token, which may be null, and with owner if asked for) and waiting (a \
number, or null). On redis and memcache, also key, which is the key that clients of other \
libraries lock. With file:, also directory, which other users may not share. A name with other \
characters than printable ASCII is encoded in the key; with redis, names=exact in the URL keeps \
it byte for byte.

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
Prints one lock per line, sorted by name: the name in quotes, and the holder. With --json, the \
lines are those of inspect --json. On a terminal, a heading on stderr says which locks are shown. \
All locks are read page by page: those that are acquired or released meanwhile may be missing or \
not. Names of more than 200 bytes are not listed: their keys do not tell them.

Needs a backend that can list its locks (file:, redis: and zookeeper: can). With redis:, each page \
is a scan over all keys of the server, in short steps, and an error if there are more than a \
million: then a prefix does not help, but inspect NAME works. Without a prefix in the URL and \
--prefix, only locks by this library are shown. With one, each string below it counts as a lock, \
as that of another library. Locks that others keep in another type are shown by inspect alone. \
With file:, a directory with more than 50000 entries is an error.

Examples:
  lockctl list
  lockctl list --prefix jobs/
  lockctl list --json | jq -r 'select(.holders[0].held_for_ms > 3600000).name'

Exit status:
  0   all locks were printed, even if there are none
  64  wrong usage or URL, or not supported by the backend
  69  the backend is unavailable, or refuses
  77  credentials or rights are missing";

pub(crate) const AFTER_TOP: &str = "\
Shows the held locks as a table on the whole terminal, as many as fit, sorted by name: for how long \
each is held, how much of its lease is left unless it is renewed, the number of waiters, and the \
holders. A dash stands for a value that the backend does not know. q and Ctrl-C quit.

The locks are those of lockctl list, and cost the same each time. A list that takes longer than a \
tenth of the interval is repeated less often: after ten times its duration. An outage is shown in \
place of the table, and ends with the next answer.

With --once, all held locks are printed once.

Examples:
  lockctl top
  lockctl top --prefix jobs/ --interval 10s
  lockctl top --once | sort -k 2

Exit status:
  0   q was pressed, or the table was printed
  64  wrong usage or URL, no terminal, or not supported by the backend
  69  the backend is unavailable at the start, or refuses
  77  credentials or rights are missing
  130 Ctrl-C was pressed";

pub(crate) const AFTER_BREAK: &str = "\
The next waiter gets the lock at once. The old holder is notified when it renews, and continues \
until then: for a third of its lease or, if it is stopped or partitioned, until it resumes. Only \
fencing tokens keep its writes out. So make sure that it has exited, or wait for its lease: \
inspect shows when that expires.

With file:, a process that holds a lock has no lease that ends: rather kill it and its command, \
which frees the lock at once. A break leaves these two with the lock file that they have locked, \
and puts a new one in its place. lockctl run notices that and kills its command, at once or \
after a third of its ttl; until then both holders work. A command whose lockctl is dead is never \
notified. Inside a container, it has no owner id to compare any more: inspect shows its process, \
kill that.

With --force, lockctl inspects the lock, ends the hold of the holder that it found, and prints \
it. With --owner, it ends the hold of that owner, and leaves a newer one alone. Holders that use \
other lock libraries have no owner id to compare: end their holds with their own tools. If it is \
unknown whether the hold was ended, lockctl reports that as an error: inspect shows the holder \
now.

Examples:
  lockctl inspect nightly && lockctl break --force nightly
  lockctl break --owner \"$(lockctl inspect --json --show-owner nightly | jq -r .holders[0].owner)\" nightly

Exit status:
  0   ended
  1   no hold was ended: the lock is free, or held by another owner
  64  wrong usage, name or URL, or not supported by the backend
  69  the backend is unavailable, or refuses
  77  credentials or rights are missing";

pub(crate) const AFTER_DOCTOR: &str = "\
Connects to the servers, checks their settings and state, and measures how long a free lock \
takes. Each finding is ok, a warning (a promise is weaker than usual, or the check could not be \
made) or a failure (locks cannot be acquired, or they exclude nothing). It names the server, \
where there are several, the check, what it saw, and the remedy. A check that the rights of this \
user or the server forbid is a warning: it could not be seen.

doctor writes only under names of its own, and leaves nothing behind. It takes a few seconds. It \
sees the servers of now: run it again after they were changed. The page docs/doctor.md lists the \
checks.

With --json, one line for each finding: severity (ok, warning or failure), server (null where \
there is one), check (a name that stays the same), text and remedy (null if there is none).

A URL can contain a password, and other users see the arguments of a command: put such a URL \
into $LOCK_BACKEND.

Examples:
  lockctl doctor
  lockctl doctor redis://locks.example.com
  lockctl --backend zookeeper://zk1,zk2,zk3 doctor
  lockctl doctor --json | jq -r 'select(.severity != \"ok\").check'

Exit status:
  0   all findings are ok
  1   there are warnings
  64  wrong usage or URL, or not supported by the backend
  69  there is a failure
  70  internal error";

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
