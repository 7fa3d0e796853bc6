//! The state of a run that all workloads share: the target, the libraries, the rows so far.

use std::cell::RefCell;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::time::Duration;

use lock_bench_worker::clock::{SECOND, now};

use super::backends::{self, Backend};
use super::claims::Claims;
use super::cpu;
use super::error::{Result, RunError};
use super::others::Found;
use super::peer::{Lib, Peer, SOON};
use super::services::{Server, Target};
use super::settings::Settings;
use crate::model::{Figures, Row, Shape};
use crate::worker::WITH_HANDOVERS;

/// The limit for one measurement, after which a worker has failed.
pub(crate) const LONG: Duration = Duration::from_secs(90);

pub(crate) struct Bench<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) backend: &'static Backend,
    pub(crate) target: Target,
    pub(crate) pins: Option<Pins>,
    /// The libraries to measure, without their floors.
    pub(crate) libs: Vec<Lib>,
    /// Libraries of other projects, with their versions or how to install them.
    pub(crate) others: Vec<Found>,
    pub(crate) seed: u64,
    pub(crate) random: fastrand::Rng,
    pub(crate) rows: Vec<Row>,
    /// The measurements without times, with the reasons.
    pub(crate) refused: Vec<String>,
    /// The measurements that a library does not support, with the reasons.
    pub(crate) left_out: Vec<String>,
    pub(crate) progress: Progress,
    names: u64,
    started: u64,
}

/// The processors of servers and of workers.
pub(crate) struct Pins {
    pub(crate) server: Vec<usize>,
    pub(crate) workers: Vec<usize>,
}

impl<'a> Bench<'a> {
    pub(crate) fn new(url: &str, settings: &'a Settings) -> Result<Self> {
        let backend = backends::of(url)?;
        let target = (backend.start)(url)?;
        let pins = match cpu::allowed().as_slice() {
            [first, ..] if settings.one_core => {
                Some(Pins { server: vec![*first], workers: vec![*first] })
            }
            [first, rest @ ..] if !rest.is_empty() && !settings.no_pin => {
                Some(Pins { server: vec![*first], workers: rest.to_vec() })
            }
            _ => None,
        };
        let mut libs = vec![Lib::own("locks", settings.threads)];
        let (there, others) = others(settings, backend)?;
        libs.extend(there);
        for peer in &settings.peer {
            if libs.iter().any(|lib| lib.name == peer.name) {
                return Err(RunError::Failed(format!("two libraries are called {}", peer.name)));
            }
            libs.push(peer.clone());
        }
        let seed = settings.seed.unwrap_or_else(|| u64::from(fastrand::u32(..)));
        let bench = Self {
            settings,
            backend,
            target,
            pins,
            libs,
            others,
            seed,
            random: fastrand::Rng::with_seed(seed),
            rows: Vec::new(),
            refused: Vec::new(),
            left_out: Vec::new(),
            progress: Progress::new(),
            names: 0,
            started: now(),
        };
        if let Some(pins) = &bench.pins {
            // This process, too, and the relay with it. A round trip between two processors takes
            // several times as long as one on the same.
            cpu::pin(std::process::id(), &pins.workers);
            bench.server_pids().iter().for_each(|&pid| cpu::pin(pid, &pins.server));
        }
        Ok(bench)
    }

    /// Lists locks of other projects that are missing, with the commands that install them.
    pub(crate) fn missing(&self) -> impl Iterator<Item = String> {
        let missing =
            self.others.iter().filter_map(|(name, found)| Some((name, found.as_ref().err()?)));
        missing.map(|(name, command)| format!("{name}, which is not installed: {command}"))
    }

    /// Returns the result of measuring one library.
    ///
    /// Returns `None` and adds a note if the library does not support the measurement. The same
    /// holds for a failure or a broken promise of another project's library, which costs only its
    /// own row.
    pub(crate) fn unless_unsupported<T>(
        &mut self,
        workload: &str,
        lib: &Lib,
        outcome: Result<T>,
    ) -> Result<Option<T>> {
        match outcome {
            Err(RunError::Unsupported(why)) => {
                let note = format!("{workload}, {}: {why}", lib.name);
                if !self.left_out.contains(&note) {
                    self.left_out.push(note);
                }
                Ok(None)
            }
            Err(RunError::Failed(why)) if lib.is_other() => {
                self.left_out.push(format!("{workload}, {}, which failed: {why}", lib.name));
                Ok(None)
            }
            Err(RunError::Void(why)) if lib.is_other() => {
                self.left_out.push(format!("{workload}, {}, whose row is void: {why}", lib.name));
                Ok(None)
            }
            outcome => outcome.map(Some),
        }
    }

    /// Measures each library once, and adds its row.
    pub(crate) fn each(
        &mut self,
        workload: &str,
        libs: &[Lib],
        measure: impl Fn(&mut Self, &Lib) -> Result<(Figures, Shape)>,
    ) -> Result<()> {
        for lib in libs {
            self.progress.show(workload, &lib.name);
            let measured = measure(self, lib);
            if let Some((figures, shape)) = self.unless_unsupported(workload, lib, measured)? {
                self.draw(workload, &lib.name, 0, figures, shape);
            }
        }
        Ok(())
    }

    /// Returns the libraries that differ without contention.
    pub(crate) fn untuned_libs(&self) -> Vec<Lib> {
        self.libs.iter().filter(|lib| !lib.is_tuned()).cloned().collect()
    }

    /// Returns the duration of the run so far, in nanoseconds.
    pub(crate) fn elapsed(&self) -> u64 {
        now() - self.started
    }

    /// Returns the time after the start of a run, in nanoseconds, at which slices are no longer
    /// repeated.
    ///
    /// A run is meant to end within two minutes, and within ten with the locks of other projects.
    pub(crate) fn retry_limit(&self) -> u64 {
        if self.settings.others { 5 * 60 * SECOND } else { 60 * SECOND }
    }

    /// Returns the libraries that can be measured with so many waiters.
    pub(crate) fn libs_for(&self, waiters: usize) -> Vec<Lib> {
        self.libs.iter().filter(|lib| waiters <= lib.max_waiters()).cloned().collect()
    }

    pub(crate) fn server(&self) -> Option<&dyn Server> {
        self.target.server.as_deref()
    }

    pub(crate) fn server_pids(&self) -> Vec<u32> {
        self.server().map(Server::pids).unwrap_or_default()
    }

    /// Returns the CPU time of the servers in nanoseconds, if this run has started them.
    pub(crate) fn server_cpu(&self) -> Option<u64> {
        let pids = self.server_pids();
        (!pids.is_empty()).then(|| pids.into_iter().map(cpu::of_process).sum())
    }

    /// Starts a worker for `lib` at the target itself.
    pub(crate) fn peer(&self, lib: &Lib) -> Result<Peer> {
        let mut peer = self.peer_at(lib, &self.target.url)?;
        self.warm_up(lib, std::slice::from_mut(&mut peer))?;
        Ok(peer)
    }

    pub(crate) fn peer_at(&self, lib: &Lib, url: &str) -> Result<Peer> {
        Peer::start(lib, url, self.pins.as_ref().map(|pins| pins.workers.as_slice()))
    }

    pub(crate) fn peers(&self, lib: &Lib, count: usize) -> Result<Vec<Peer>> {
        let peers = (0..count).map(|_| self.peer_at(lib, &self.target.url));
        let mut peers = peers.collect::<Result<Vec<_>>>()?;
        self.warm_up(lib, &mut peers)?;
        Ok(peers)
    }

    /// Lets workers that are slow at first work for a second, all at once, if times are measured.
    fn warm_up(&self, lib: &Lib, peers: &mut [Peer]) -> Result<()> {
        const MS: u64 = 1_000;

        if self.settings.exact || !lib.warms_up() {
            return Ok(());
        }
        for (i, peer) in peers.iter_mut().enumerate() {
            peer.send(&format!("pairs bench-{}-warm-{i} 1 0 {MS} 0", std::process::id()))?;
        }
        peers.iter_mut().try_for_each(|peer| peer.receive(LONG).map(drop))
    }

    pub(crate) fn floor(&self, name: &str) -> Lib {
        Lib::own(name, self.settings.threads)
    }

    /// Measures our own locks also with hand-overs inside a process. They are a library of their
    /// own, where they make a difference.
    pub(crate) fn with_handovers(
        &mut self,
        measure: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.libs.push(Lib::own(WITH_HANDOVERS, self.settings.threads));
        let measured = measure(self);
        self.libs.pop();
        measured
    }

    /// Returns a name that no other measurement uses: the residue of one must not affect the next.
    pub(crate) fn fresh_name(&mut self) -> String {
        self.names += 1;
        format!("bench-{}-{}", std::process::id(), self.names)
    }

    /// Returns the median of some round trips, each after such a pause, in nanoseconds.
    pub(crate) fn round_trip(&self, addr: SocketAddr, times: usize, pause: u64) -> Result<f64> {
        let server = self.server().ok_or_else(|| RunError::Failed("there is no server".into()))?;
        let trips = server.round_trips(addr, times, pause)?;
        Ok(median(trips.into_iter().map(|nanos| nanos as f64)))
    }

    /// Collects all claims of the lock `name` from its holders. Fails if their number is not
    /// `expected`, or if they break a promise.
    pub(crate) fn collect(
        &self,
        peers: &mut [Peer],
        name: &str,
        expected: usize,
    ) -> Result<Claims> {
        for peer in peers.iter_mut() {
            peer.send("collect")?;
        }
        let mut claims = Claims::default();
        for (i, peer) in peers.iter_mut().enumerate() {
            claims.add(i, name, &peer.receive(LONG)?)?;
        }
        claims.check(name)?;
        match claims.len() == expected {
            true => Ok(claims),
            false => Err(RunError::Failed(format!(
                "{name} was to be held {expected} times, and {} claims came back",
                claims.len()
            ))),
        }
    }

    pub(crate) fn add(&mut self, workload: &str, lib: &str, round: usize, figures: Figures) {
        self.draw(workload, lib, round, figures, Shape::new());
    }

    /// Adds a row with the points of its picture.
    pub(crate) fn draw(
        &mut self,
        workload: &str,
        lib: &str,
        round: usize,
        figures: Figures,
        shape: Shape,
    ) {
        self.rows.push(Row { shape, ..Row::new(workload, lib, round, figures) });
    }
}

/// Finds locks of other projects, if requested. Returns those that are installed, and all that were
/// looked up.
fn others(settings: &Settings, backend: &Backend) -> Result<(Vec<Lib>, Vec<Found>)> {
    if !settings.others {
        return Ok((Vec::new(), Vec::new()));
    }
    let wanted = backend.others.iter().map(|other| other.find(settings.threads));
    let (there, found): (Vec<Option<Lib>>, Vec<Found>) = wanted.unzip();
    let there: Vec<Lib> = there.into_iter().flatten().collect();
    if there.is_empty() {
        let mut commands: Vec<&str> = found
            .iter()
            .filter_map(|(_, found)| found.as_ref().err().map(String::as_str))
            .collect();
        commands.dedup();
        return Err(RunError::Failed(match commands.is_empty() {
            true => format!("no locks of other projects are known for {}:", backend.scheme),
            false => format!("no lock of another project is installed: {}", commands.join("; ")),
        }));
    }
    Ok((there, found))
}

/// Sends the same command to all workers, one after the other, so that their order is known.
pub(crate) fn ask_each(peers: &mut [Peer], command: &str) -> Result<()> {
    peers.iter_mut().try_for_each(|peer| peer.ask(command, SOON).map(drop))
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    quantile(values, 0.5)
}

/// Returns the smallest value that at least this share of all does not exceed, or NaN if there is
/// none.
pub(crate) fn quantile(values: impl Iterator<Item = f64>, share: f64) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = (share * values.len() as f64).ceil() as usize;
    values.get(at.max(1) - 1).copied().unwrap_or(f64::NAN)
}

/// The progress of a run, on stderr, so that the table can be stored separately. On a terminal it
/// is one changing line. In a pipe it is a line for each new subject.
pub(crate) struct Progress {
    on_terminal: bool,
    shown: RefCell<String>,
}

impl Progress {
    fn new() -> Self {
        Self { on_terminal: io::stderr().is_terminal(), shown: RefCell::default() }
    }

    /// Shows a subject and a detail, which is left out in a pipe.
    pub(crate) fn show(&self, subject: &str, detail: &str) {
        if self.on_terminal {
            write(&format!("\r\x1b[K{subject}, {detail}"));
        } else if self.shown.replace(subject.to_owned()) != subject {
            write(&format!("{subject}\n"));
        }
    }

    /// Prints a permanent line.
    pub(crate) fn note(&self, line: &str) {
        self.clear();
        write(&format!("{line}\n"));
    }

    pub(crate) fn clear(&self) {
        if self.on_terminal {
            write("\r\x1b[K");
        }
    }
}

fn write(text: &str) {
    let mut out = io::stderr();
    // A reader that has gone misses nothing important.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
