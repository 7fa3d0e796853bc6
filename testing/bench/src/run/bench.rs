//! What all workloads share: the place, the libraries, the rows so far.

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

/// How long a measurement may take before a worker is given up.
pub(crate) const LONG: Duration = Duration::from_secs(90);

pub(crate) struct Bench<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) backend: &'static Backend,
    pub(crate) target: Target,
    pub(crate) pins: Option<Pins>,
    /// What is measured, beside its floors.
    pub(crate) libs: Vec<Lib>,
    /// Other projects' libraries, with their versions or what is missing.
    pub(crate) others: Vec<Found>,
    pub(crate) seed: u64,
    pub(crate) random: fastrand::Rng,
    pub(crate) rows: Vec<Row>,
    /// Whose times were not taken, and why.
    pub(crate) refused: Vec<String>,
    /// Who cannot do what was to be measured, and why.
    pub(crate) left_out: Vec<String>,
    pub(crate) progress: Progress,
    names: u64,
    started: u64,
}

/// Which processors run what.
pub(crate) struct Pins {
    pub(crate) server: Vec<usize>,
    pub(crate) workers: Vec<usize>,
}

impl<'a> Bench<'a> {
    pub(crate) fn new(url: &str, settings: &'a Settings) -> Result<Self> {
        let backend = backends::of(url)?;
        let target = (backend.start)(url)?;
        let pins = match cpu::allowed().as_slice() {
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
            // Ours too, and the relay's with it: a round trip between two processors takes several times
            // as long as one on the same.
            cpu::pin(std::process::id(), &pins.workers);
            bench.server_pids().iter().for_each(|&pid| cpu::pin(pid, &pins.server));
        }
        Ok(bench)
    }

    /// Locks of other projects that are not there, with what installs them.
    pub(crate) fn missing(&self) -> impl Iterator<Item = String> {
        let missing =
            self.others.iter().filter_map(|(name, found)| Some((name, found.as_ref().err()?)));
        missing.map(|(name, command)| format!("{name}, which is not installed: {command}"))
    }

    /// What came of a measurement of one library; nothing, and a note, if it cannot do what was asked of it, or if
    /// it is that of another project and failed, or broke a promise: that is to cost no more than its own row.
    pub(crate) fn unless_unsupported<T>(
        &mut self,
        workload: &str,
        lib: &Lib,
        outcome: Result<T>,
    ) -> Result<Option<T>> {
        match outcome {
            Err(RunError::Unsupported(why)) => {
                let what = format!("{workload}, {}: {why}", lib.name);
                if !self.left_out.contains(&what) {
                    self.left_out.push(what);
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

    /// Returns the libraries that differ where no claim waits.
    pub(crate) fn untuned_libs(&self) -> Vec<Lib> {
        self.libs.iter().filter(|lib| !lib.is_tuned()).cloned().collect()
    }

    /// How long the run has taken so far, in nanoseconds.
    pub(crate) fn elapsed(&self) -> u64 {
        now() - self.started
    }

    /// How long after the beginning of a run slices are still taken anew: it is to end within two minutes, and
    /// within ten with the locks of other projects.
    pub(crate) fn retry_limit(&self) -> u64 {
        if self.settings.others { 5 * 60 * SECOND } else { 60 * SECOND }
    }

    /// Those of which so many waiters can be measured.
    pub(crate) fn libs_for(&self, waiters: usize) -> Vec<Lib> {
        self.libs.iter().filter(|lib| waiters <= lib.max_waiters()).cloned().collect()
    }

    pub(crate) fn server(&self) -> Option<&dyn Server> {
        self.target.server.as_deref()
    }

    pub(crate) fn server_pids(&self) -> Vec<u32> {
        self.server().map(Server::pids).unwrap_or_default()
    }

    /// How long the servers have been running, in nanoseconds, if they are ours.
    pub(crate) fn server_cpu(&self) -> Option<u64> {
        let pids = self.server_pids();
        (!pids.is_empty()).then(|| pids.into_iter().map(cpu::of_process).sum())
    }

    /// A worker for `lib`, at the place itself.
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

    /// Has those that are slow at first work for a second, all at once, where times are taken.
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

    /// Measures our own locks as they are handed over inside a process, too: a library of its own, where that
    /// makes a difference.
    pub(crate) fn with_handovers(
        &mut self,
        measure: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.libs.push(Lib::own(WITH_HANDOVERS, self.settings.threads));
        let measured = measure(self);
        self.libs.pop();
        measured
    }

    /// A name that no other measurement uses: what one leaves behind must not meet the next one.
    pub(crate) fn fresh_name(&mut self) -> String {
        self.names += 1;
        format!("bench-{}-{}", std::process::id(), self.names)
    }

    /// The median of some round trips, each after such a pause, in nanoseconds.
    pub(crate) fn round_trip(&self, addr: SocketAddr, times: usize, pause: u64) -> Result<f64> {
        let server = self.server().ok_or_else(|| RunError::Failed("there is no server".into()))?;
        let trips = server.round_trips(addr, times, pause)?;
        Ok(median(trips.into_iter().map(|nanos| nanos as f64)))
    }

    /// All claims of the lock `name`, from those who held it. There are as many as were asked for, and
    /// they do not break a promise.
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

    /// With what a picture shows of it.
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

/// Locks of other projects, if they are asked for: those that are there, and which were looked for.
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

/// Gives all the same command, one after the other: the order in which they do it is known.
pub(crate) fn ask_each(peers: &mut [Peer], command: &str) -> Result<()> {
    peers.iter_mut().try_for_each(|peer| peer.ask(command, SOON).map(drop))
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    quantile(values, 0.5)
}

/// The smallest value that at least this share of all is not above; not a number if there is none.
pub(crate) fn quantile(values: impl Iterator<Item = f64>, share: f64) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let at = (share * values.len() as f64).ceil() as usize;
    values.get(at.max(1) - 1).copied().unwrap_or(f64::NAN)
}

/// What is being done: one line that changes on a terminal; in a pipe a line for each thing that is new. On
/// stderr, so that the table can be kept apart.
pub(crate) struct Progress {
    on_terminal: bool,
    said: RefCell<String>,
}

impl Progress {
    fn new() -> Self {
        Self { on_terminal: io::stderr().is_terminal(), said: RefCell::default() }
    }

    /// What is measured; and what of it just now, which in a pipe is left out.
    pub(crate) fn show(&self, what: &str, just_now: &str) {
        if self.on_terminal {
            write(&format!("\r\x1b[K{what}, {just_now}"));
        } else if self.said.replace(what.to_owned()) != what {
            write(&format!("{what}\n"));
        }
    }

    /// Something to be kept.
    pub(crate) fn note(&self, what: &str) {
        self.clear();
        write(&format!("{what}\n"));
    }

    pub(crate) fn clear(&self) {
        if self.on_terminal {
            write("\r\x1b[K");
        }
    }
}

fn write(text: &str) {
    let mut out = io::stderr();
    // Whoever does not listen misses nothing that matters.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
