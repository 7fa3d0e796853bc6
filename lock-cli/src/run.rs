//! `lockctl run`: holding a lock while a command runs.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use lock_any::backend::Ticket;
use lock_any::clock::sleep;
use lock_any::{ErrorKind, Label, Lock, LockGuard, Locker, Loss, Support};
use nix::sys::signal::{Signal, raise};

use crate::acquire::{self, close_after};
use crate::cli::Run;
use crate::connect;
use crate::exit::{Exit, Failure, chain, print_message};
use crate::group;
use crate::job::{Job, KillPolicy};
use crate::progress::Progress;
use crate::signals::{Children, ENDING, FORWARDED, Signals};
use crate::terminal::Terminal;

pub(crate) async fn run(url: &str, args: &Run) -> Result<Exit, Failure> {
    let progress = Progress::of(args);
    let outcome = run_locked(url, args, &progress).await;
    if let Some(why) = outcome.as_ref().err().and_then(Failure::loss_message) {
        progress.lost(why);
    }
    outcome
}

async fn run_locked(url: &str, args: &Run, progress: &Progress<'_>) -> Result<Exit, Failure> {
    let grace = grace(url, args)?;
    let mut signals = Signals::catch(ENDING)?;
    let locks = tokio::select! {
        locks = connect::connect_as(Label::host_and_pid(), url) => locks?,
        signal = signals.next() => return Err(Failure::signalled(signal)),
    };
    let lock = configured_lock(&locks, args)?;
    let acquired =
        acquire::acquire_within(url, &locks, &lock, &args.wait_options, progress, &mut signals)
            .await;
    let guard = match acquired {
        Ok(guard) => guard,
        Err(failure) => return close_after(&locks, failure).await,
    };
    progress.acquired(&guard);
    signals.catch_more(FORWARDED)?;
    let children = Children::watch()?;
    let job = match start(&guard, args).await {
        Ok(job) => job,
        Err(failure) => {
            return release_after_command(&locks, guard, args, failure.report(), &mut signals)
                .await;
        }
    };
    let supervisor = Supervisor::new(&guard, job, children, grace);
    let ended = supervisor.run(&mut signals).await?;
    if let Some(stop) = ended.stop {
        let failure = stop.failure(&guard);
        if !guard.is_held() {
            // There is no hold to release.
            return Err(failure);
        }
        drop(guard);
        return close_after(&locks, failure).await;
    }
    let exit =
        release_after_command(&locks, guard, args, Exit::of_command(ended.status), &mut signals)
            .await;
    // Only after the release, because lockctl dies of the signal.
    match ended.interrupt.map(Interrupt::pass_on) {
        Some(death) => exit.and(Err(death)),
        None => exit,
    }
}

/// The time between SIGTERM to the command and the end of the lease.
#[derive(Clone, Copy)]
struct Grace {
    configured: Duration,
    ttl: Duration,
    /// The longest lease so far: some backends have leases shorter than the ttl, renewed earlier.
    longest: Duration,
}

impl Grace {
    fn for_lease(&mut self, left: Duration) -> Duration {
        self.longest = self.longest.max(left);
        match self.longest < self.ttl.mul_f64(0.9) {
            true => self.configured.min(self.longest / 8),
            false => self.configured,
        }
    }
}

fn grace(url: &str, args: &Run) -> Result<Grace, Failure> {
    const LONGEST_BY_DEFAULT: Duration = Duration::from_secs(5);
    let ttl = connect::ttl(url, args.ttl)?;
    let configured = match args.grace {
        None => LONGEST_BY_DEFAULT.min(ttl / 6),
        Some(grace) if grace < ttl / 3 => grace,
        Some(_) => {
            return Err(Failure::usage(format!(
                "--grace must be less than a third of the ttl, which is {}",
                humantime::format_duration(ttl)
            )));
        }
    };
    Ok(Grace { configured, ttl, longest: Duration::ZERO })
}

fn configured_lock(locks: &Locker, args: &Run) -> Result<Lock, Failure> {
    let mut lock = locks.lock(args.name.get())?;
    if let Some(ttl) = args.ttl {
        lock = lock.ttl(ttl);
    }
    if let Some(span) = args.min_hold {
        lock = lock.min_hold(span);
    }
    Ok(lock)
}

async fn start(guard: &LockGuard, args: &Run) -> Result<Job, Failure> {
    let token = guard.fencing_token().map(|token| token.to_string());
    let variables = [
        ("LOCK_NAME", Some(guard.name().as_str().to_owned())),
        ("LOCK_OWNER", Some(guard.owner().expose())),
        // Without a token, that of an outer lockctl is removed as well.
        ("LOCK_FENCING_TOKEN", token),
    ];
    let ticket = guard.ticket().await;
    let queue_entry = ticket.as_ref().and_then(queue_descriptor);
    let lock = ticket.as_ref().and_then(descriptor);
    let both: Vec<_> = lock.into_iter().chain(queue_entry.as_ref().map(AsFd::as_fd)).collect();
    let kill_policy = match lock {
        Some(_) => KillPolicy::Descriptors(&both),
        None => KillPolicy::Death,
    };
    Job::start(&args.command, &variables, &kill_policy)
}

/// Returns the descriptor that a command inherits to keep the kernel's lock.
#[cfg(feature = "file")]
fn descriptor(ticket: &Ticket) -> Option<BorrowedFd<'_>> {
    lock_any::file::descriptor(ticket)
}

#[cfg(not(feature = "file"))]
fn descriptor(_: &Ticket) -> Option<BorrowedFd<'_>> {
    None
}

/// Returns the descriptor that a command inherits so that the next waiter sleeps until it ends.
#[cfg(feature = "file")]
fn queue_descriptor(ticket: &Ticket) -> Option<OwnedFd> {
    lock_any::file::queue_descriptor(ticket)
}

#[cfg(not(feature = "file"))]
fn queue_descriptor(_: &Ticket) -> Option<OwnedFd> {
    None
}

/// Releases the lock after the command has ended by itself.
async fn release_after_command(
    locks: &Locker,
    guard: LockGuard,
    args: &Run,
    exit: Exit,
    signals: &mut Signals,
) -> Result<Exit, Failure> {
    let server_enforces = locks.capabilities().minimum_hold == Support::Present;
    let may_take_long = args.min_hold.is_some() && !server_enforces;
    let answer = tokio::select! {
        answer = guard.release() => answer,
        signal = next_ending_signal(signals), if may_take_long => {
            print_message(&format!("lock {} is released before the end of --min-hold", args.name.get()));
            return Err(Failure::signalled(signal));
        }
    };
    match answer {
        Ok(()) => Ok(exit),
        Err(error) if matches!(error.kind(), ErrorKind::Lost | ErrorKind::NotHeld) => {
            Err(error.into())
        }
        // The command ran under the lock to its end, so its status counts. Only the time of the
        // release is unknown.
        Err(error) => {
            let bound = error.free_within().map(|bound| {
                format!("; it is free after {:.1} s at the latest", bound.as_secs_f64())
            });
            print_message(&format!("{}{}", chain(&error), bound.unwrap_or_default()));
            Ok(exit)
        }
    }
}

async fn next_ending_signal(signals: &mut Signals) -> Signal {
    loop {
        let signal = signals.next().await;
        if ENDING.contains(&signal) {
            return signal;
        }
        // There is no command to stop any more, so lockctl stops itself. The terminal has signalled
        // the rest of the group.
        if signal == Signal::SIGTSTP && !group::is_orphaned() {
            let _ = raise(Signal::SIGSTOP);
        }
    }
}

/// The end of the command, and whether lockctl caused it.
struct Completion {
    status: ExitStatus,
    stop: Option<Stop>,
    interrupt: Option<Interrupt>,
}

/// The death of the command by a signal that is also meant for a script or loop around lockctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interrupt {
    signal: Signal,
    /// True if the terminal sent it, and not to lockctl's group, which was in the background.
    by_terminal: bool,
}

impl Interrupt {
    fn of(status: ExitStatus, had_terminal: bool, forwarded: &[Signal]) -> Option<Self> {
        let signal = Signal::try_from(status.signal()?).ok()?;
        let is_meant_for_all = matches!(signal, Signal::SIGINT | Signal::SIGQUIT);
        let came_by_us = had_terminal || forwarded.contains(&signal);
        (is_meant_for_all && came_by_us).then_some(Self { signal, by_terminal: had_terminal })
    }

    fn pass_on(self) -> Failure {
        if self.by_terminal {
            group::signal(self.signal);
        }
        Failure::signalled(self.signal)
    }
}

/// The signal sent to the command because of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stop {
    /// SIGTERM, because no renewal is acknowledged and the lease is about to expire.
    Terminate,
    /// SIGKILL, because the lock is lost or almost lost.
    Kill,
}

impl Stop {
    fn signal(self) -> Signal {
        match self {
            Self::Terminate => Signal::SIGTERM,
            Self::Kill => Signal::SIGKILL,
        }
    }

    /// Returns the failure. The lock counts as lost even while it is held, because the command
    /// could not finish.
    fn failure(self, guard: &LockGuard) -> Failure {
        let name = guard.name();
        let message = match self {
            Self::Kill => {
                let why = guard.loss().unwrap_or(Loss::Expired);
                format!("lock {name} was lost: {why}; the command was killed")
            }
            Self::Terminate => format!(
                "lock {name} was about to be lost: no renewal was acknowledged; the command was \
                 stopped"
            ),
        };
        Failure::new(Exit::LOST, message)
    }
}

/// The time at which a command resumes that was stopped together with lockctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResumePolicy {
    /// Never: it was not stopped, or not with lockctl.
    Never,
    /// At once: no shell would resume it, or the shell's SIGCONT does not arrive.
    AtOnce,
    /// With the SIGCONT that resumes lockctl. The command gets only that one: a second one would
    /// resume a command that a key has stopped in between.
    WithLockctl,
}

/// A supervisor of a command that runs under a lock.
struct Supervisor<'a> {
    guard: &'a LockGuard,
    job: Job,
    /// Wakes when the command ends or stops.
    children: Children,
    terminal: Option<Terminal>,
    grace: Grace,
    stop: Option<Stop>,
    resumes: ResumePolicy,
    /// The policy after a stop if there is a shell.
    resumes_after_stop: ResumePolicy,
    /// The signals that were forwarded to the command.
    forwarded: Vec<Signal>,
}

impl<'a> Supervisor<'a> {
    fn new(guard: &'a LockGuard, job: Job, children: Children, grace: Grace) -> Self {
        Self {
            guard,
            job,
            children,
            terminal: Terminal::controlling(),
            grace,
            stop: None,
            resumes: ResumePolicy::Never,
            resumes_after_stop: ResumePolicy::WithLockctl,
            forwarded: Vec::new(),
        }
    }

    async fn run(mut self, signals: &mut Signals) -> Result<Completion, Failure> {
        if signals.are_ignored(Signal::SIGCONT) {
            self.resumes_after_stop = ResumePolicy::AtOnce;
        }
        self.give_terminal();
        let mut pending_signal = None;
        loop {
            // Check the lock first after each wake-up: this process may have been stopped for long,
            // and then no signal may let the command continue.
            let next_check_in = self.enforce_lease();
            if self.job.has_ended() {
                return self.end();
            }
            let may_continue = self.stop != Some(Stop::Kill);
            if may_continue {
                self.resume(&mut pending_signal);
                if let Some(signal) = pending_signal.take() {
                    self.forward(signal);
                }
                self.stop_with_the_command();
                if self.resumes == ResumePolicy::AtOnce {
                    continue;
                }
            }
            tokio::select! {
                () = self.children.next() => {}
                signal = signals.next() => pending_signal = Some(signal),
                _ = self.guard.lost(), if may_continue => {}
                () = wait(next_check_in), if may_continue => {}
            }
        }
    }

    /// Stops the command if the lock demands it. Returns when to check again, if there is a lease.
    fn enforce_lease(&mut self) -> Option<Duration> {
        /// Timers stop while a machine is suspended, and leases do not. After a suspension, the
        /// command runs without the lock for no longer than this.
        const LONGEST_PAUSE: Duration = Duration::from_secs(1);
        /// The time that the kernel has to deliver SIGKILL.
        const KILL_MARGIN: Duration = Duration::from_millis(250);

        let left = self.guard.valid_for();
        if !self.guard.is_held() {
            self.stop(Stop::Kill);
            return None;
        }
        let left = left?;
        let grace = self.grace.for_lease(left);
        let kill_margin = KILL_MARGIN.min(grace / 4);
        if !self.job.has_ended() {
            if left <= kill_margin {
                self.stop(Stop::Kill);
            } else if left <= grace {
                self.stop(Stop::Terminate);
            }
        }
        let next = if left <= grace { kill_margin } else { grace };
        Some(left.saturating_sub(next).min(LONGEST_PAUSE))
    }

    fn stop(&mut self, stop: Stop) {
        if self.stop < Some(stop) {
            self.stop = Some(stop);
            self.job.signal(stop.signal());
        }
    }

    fn forward(&mut self, signal: Signal) {
        self.job.signal(signal);
        if !self.forwarded.contains(&signal) {
            self.forwarded.push(signal);
        }
    }

    /// Stops lockctl, and the script or pipeline around it, together with a command that job
    /// control has stopped: the shell waits until all have stopped, and resumes them. A command
    /// that was stopped in any other way keeps its lock.
    fn stop_with_the_command(&mut self) {
        use Signal::{SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU};
        let Some(terminal) = &mut self.terminal else { return };
        match self.job.stopped_by() {
            Some(SIGTTIN | SIGTTOU) if terminal.give_to(self.job.group()) => {
                self.job.signal(SIGCONT);
            }
            Some(SIGTTIN | SIGTTOU) if group::stop() => self.resumes = self.resumes_after_stop,
            Some(SIGTSTP) => self.stop_by_key(),
            // A lockctl that is the command, or part of it, stops by SIGSTOP.
            Some(SIGSTOP) if terminal.is_given() || self.forwarded.contains(&SIGTSTP) => {
                self.stop_by_key();
            }
            _ => {}
        }
    }

    fn stop_by_key(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            terminal.take_back();
        }
        self.resumes = if group::stop() { self.resumes_after_stop } else { ResumePolicy::AtOnce };
    }

    fn resume(&mut self, pending_signal: &mut Option<Signal>) {
        let is_time = match self.resumes {
            ResumePolicy::Never => false,
            ResumePolicy::AtOnce => true,
            ResumePolicy::WithLockctl => pending_signal
                .take_if(|pending_signal| *pending_signal == Signal::SIGCONT)
                .is_some(),
        };
        if is_time {
            self.resumes = ResumePolicy::Never;
            self.forwarded.retain(|&signal| signal != Signal::SIGTSTP);
            if !self.give_terminal() {
                self.job.signal(Signal::SIGCONT);
            }
        }
    }

    /// Gives the terminal to the command and resumes it. Returns true if the command has it now.
    fn give_terminal(&mut self) -> bool {
        let Some(terminal) = &mut self.terminal else { return false };
        let given = terminal.is_for_command() && terminal.give_to(self.job.group());
        if given {
            // It may have used the terminal already, and been stopped for that.
            self.job.signal(Signal::SIGCONT);
        }
        given
    }

    fn end(mut self) -> Result<Completion, Failure> {
        if self.stop.is_some() {
            // Processes that the command left in its group must not run without the lock.
            self.job.signal(Signal::SIGKILL);
        }
        let had_terminal = self.terminal.as_mut().is_some_and(Terminal::take_back);
        let status = self.job.reap()?;
        if let Some(terminal) = &self.terminal
            && had_terminal
            && status.signal().is_some()
        {
            terminal.restore_modes();
        }
        let interrupt = Interrupt::of(status, had_terminal, &self.forwarded);
        Ok(Completion { status, stop: self.stop, interrupt })
    }
}

async fn wait(pause: Option<Duration>) {
    match pause {
        Some(pause) => sleep(pause).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use lock_any::clock::Moment;
    use lock_any::{Memory, RenewalPolicy};

    use super::*;

    const TTL: Duration = Duration::from_millis(3000);
    const GRACE: Grace =
        Grace { configured: Duration::from_millis(980), ttl: TTL, longest: Duration::ZERO };

    /// Runs a script under a lock that is not renewed. Returns its end, the time that it took, and
    /// whether the lock was still held then.
    async fn run_unrenewed(script: &str) -> (Completion, Duration, bool) {
        let lock = Locker::new(Memory::new()).lock("n").unwrap();
        let started = Moment::now();
        let lock = lock.ttl(TTL).renewal(RenewalPolicy::off());
        let guard = lock.acquire().await.unwrap();
        let mut signals = Signals::catch(&[]).unwrap();
        let children = Children::watch().unwrap();
        let command = ["sh", "-c", script].map(Into::into);
        let inherited = File::open("/dev/null").unwrap();
        let job =
            Job::start(&command, &[], &KillPolicy::Descriptors(&[inherited.as_fd()])).unwrap();
        let supervisor = Supervisor::new(&guard, job, children, GRACE);
        let Ok(ended) = supervisor.run(&mut signals).await else {
            panic!("the command's end was not seen");
        };
        let took = Moment::now().saturating_since(started);
        (ended, took, guard.is_held())
    }

    #[tokio::test]
    async fn a_command_that_cannot_keep_its_lock_is_asked_to_stop_in_time() {
        let (ended, took, held) =
            run_unrenewed("trap 'exit 7' TERM; while :; do sleep 0.02; done").await;
        assert_eq!(ended.stop, Some(Stop::Terminate));
        assert_eq!(ended.status.code(), Some(7));
        assert!(took >= TTL - TTL / 100 - GRACE.configured, "stopped too early: {took:?}");
        assert!(held, "the command ended after the lease: {took:?}");
    }

    #[tokio::test]
    async fn a_command_that_does_not_stop_is_killed_in_time() {
        let (ended, took, held) = run_unrenewed("trap '' TERM; while :; do sleep 0.02; done").await;
        assert_eq!(ended.stop, Some(Stop::Kill));
        assert_eq!(Exit::of_command(ended.status), Exit::by_signal(9));
        assert!(took >= TTL - TTL / 100 - GRACE.configured / 4, "stopped too early: {took:?}");
        assert!(held, "the command ended after the lease: {took:?}");
    }

    #[tokio::test]
    async fn a_command_that_ends_by_itself_was_not_stopped() {
        let (ended, _, held) = run_unrenewed("exit 3").await;
        assert_eq!((ended.stop, ended.status.code(), held), (None, Some(3), true));
    }
}
