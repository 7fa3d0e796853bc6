//! A command in a process group of its own.

use std::ffi::OsString;
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

use crate::cli;
use crate::exec::{self, cannot_run};
use crate::exit::{Exit, Failure, chain};

/// The group of the running command, or 0: a panic kills it.
static RUNNING: AtomicI32 = AtomicI32::new(0);

/// The way to keep a command from running without the lock after its lockctl was killed.
pub(crate) enum KillPolicy<'a> {
    /// The command inherits these descriptors: the kernel's lock, which ends with its last copy,
    /// and the queue entry.
    Descriptors(&'a [BorrowedFd<'a>]),
    /// The command is killed as well.
    Death,
}

/// A running command.
pub(crate) struct Job {
    child: Child,
    group: Pid,
}

impl Job {
    /// Starts a command. Call it on the main thread: [`KillPolicy::Death`] ties the command to the
    /// calling thread.
    pub(crate) fn start(
        command: &[OsString],
        variables: &[(&str, Option<String>)],
        kill_policy: &KillPolicy<'_>,
    ) -> Result<Self, Failure> {
        let spawn = |command: &mut Command| {
            for (name, value) in variables {
                match value {
                    Some(value) => command.env(name, value),
                    None => command.env_remove(name),
                };
            }
            command.process_group(0).spawn()
        };
        let (program, arguments) = command.split_first().expect("clap demands a command");
        let spawn_exec = |parent| {
            spawn(&mut exec_self(parent, command)).map_err(|error| {
                let message = if Path::new("/proc/self").exists() {
                    format!("cannot start the command: {}", chain(&error))
                } else {
                    "cannot start the command: lockctl needs /proc, which is not mounted".to_owned()
                };
                Failure::new(Exit::CANNOT_RUN, message)
            })
        };
        let child = match kill_policy {
            KillPolicy::Death => spawn_exec(Some(std::process::id())),
            KillPolicy::Descriptors(lock) if exec::is_killed_with_parent() => {
                // This is the command of an outer lockctl, with whose lease it must end.
                let _copies = Inherited::copies_of(lock)?;
                spawn_exec(Some(std::process::id()))
            }
            KillPolicy::Descriptors(lock) => {
                let _copies = Inherited::copies_of(lock)?;
                match spawn(Command::new(program).args(arguments)) {
                    // Run a script without #! by the shell, as execvp(3) does. posix_spawn(3) does
                    // not.
                    Err(error) if error.raw_os_error() == Some(Errno::ENOEXEC as i32) => {
                        spawn_exec(None)
                    }
                    started => started.map_err(|error| cannot_run(program, &error)),
                }
            }
        }?;
        let group = Pid::from_raw(i32::try_from(child.id()).expect("a process id is a pid_t"));
        RUNNING.store(group.as_raw(), Ordering::SeqCst);
        Ok(Self { child, group })
    }

    pub(crate) fn group(&self) -> Pid {
        self.group
    }

    /// Signals the whole group, except processes that lockctl has no right to signal (set-user-id).
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = killpg(self.group, signal);
    }

    /// Returns true once the command has ended. The number of its group is not reused before
    /// [`reap`](Self::reap).
    pub(crate) fn has_ended(&self) -> bool {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        // An error means the end as well: nix does not know the real-time signals, of which a
        // command can die.
        waitid(Id::Pid(self.group), flags) != Ok(WaitStatus::StillAlive)
    }

    /// Returns the signal that has stopped the command, once for each stop.
    pub(crate) fn stopped_by(&self) -> Option<Signal> {
        match waitid(Id::Pid(self.group), WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG) {
            Ok(WaitStatus::Stopped(_, signal)) => Some(signal),
            _ => None,
        }
    }

    /// Waits for the end of the command, and returns its status.
    pub(crate) fn reap(mut self) -> Result<ExitStatus, Failure> {
        let status = self.child.wait();
        RUNNING.store(0, Ordering::SeqCst);
        status.map_err(|error| {
            Failure::internal("cannot read the exit status of the command", &error)
        })
    }
}

/// Kills the running command, if there is one.
pub(crate) fn kill_running() {
    let group = RUNNING.load(Ordering::SeqCst);
    if group > 0 {
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
}

/// Returns the command line of lockctl that becomes `command`.
fn exec_self(parent: Option<u32>, command: &[OsString]) -> Command {
    let mut lockctl = cli::reexec(cli::EXEC);
    if let Some(parent) = parent {
        lockctl.arg("--parent").arg(parent.to_string());
    }
    lockctl.arg("--").args(command);
    lockctl
}

/// A copy of a descriptor that commands inherit, closed on drop.
struct Inherited(RawFd);

impl Inherited {
    fn copies_of(descriptors: &[BorrowedFd<'_>]) -> Result<Vec<Self>, Failure> {
        descriptors.iter().map(|descriptor| Self::copy_of(*descriptor)).collect()
    }

    fn copy_of(descriptor: BorrowedFd<'_>) -> Result<Self, Failure> {
        // Above the numbers that scripts use: a script that reuses this one would release the lock.
        const OUT_OF_THE_WAY: RawFd = 100;
        fcntl(descriptor, FcntlArg::F_DUPFD(OUT_OF_THE_WAY))
            .or_else(|_| fcntl(descriptor, FcntlArg::F_DUPFD(3)))
            .map(Self)
            .map_err(|error| Failure::internal("cannot pass the lock to the command", &error))
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        let _ = nix::unistd::close(self.0);
    }
}
