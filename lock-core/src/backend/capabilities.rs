//! The capabilities that a backend declares and an application requires. The conformance suite
//! selects its laws by them.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// How far a backend's fencing tokens can be trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fencing {
    /// There are none: [`fencing_token`](crate::LockGuard::fencing_token) is `None`.
    #[default]
    None,
    /// Each token is higher than the one before, from a counter that never starts below the
    /// server's wall clock in microseconds. They go back only if the server loses its data *and*
    /// its clock is set back, or if a successor's clock is behind by more than the gap between the
    /// two.
    Seeded,
    /// Each token was logged by consensus or synced to disk before the grant returned.
    Durable,
}

/// In which order waiters are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Order {
    /// First come, first served inside one process (core sees to that); a race between processes.
    #[default]
    PerProcess,
    /// First come, first served among all clients.
    Fifo,
}

/// How a waiter learns that the lock is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wakeup {
    /// It polls.
    #[default]
    Poll,
    /// A notification makes it attempt at once.
    Signal,
    /// The lock is handed to it.
    HandOff,
}

/// The clients that the lock excludes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reach {
    /// Tasks and threads of one process.
    #[default]
    Process,
    /// Processes of one user on one host.
    User,
    /// Processes of one host, of several users.
    Host,
    /// All clients that can reach the server.
    Network,
}

/// The failures that a held lock survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// None: the server may drop a held lock at any time, for example to make room. A second holder
    /// then has the lock before the first one is notified. Such locks save work; they do not
    /// prevent that it is done twice.
    #[default]
    Advisory,
    /// All failures while the server runs. A restart or a failover may lose it.
    UntilRestart,
    /// The crash of any one server. It ends with its holder or its lease, or when an operator
    /// removes it.
    Durable,
}

/// The support for an optional verb or field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Support {
    /// Not there: asking for it is refused before anything is sent.
    #[default]
    Absent,
    /// There.
    Present,
}

/// By when the next waiter holds the lock after its holder crashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takeover {
    /// When the last process of the holder is gone.
    AtOnce,
    /// At the latest this long after the holder's lease ended.
    LeasePlus(Duration),
}

/// Everything a backend declares.
///
/// ```
/// use lock_core::{Capabilities, Durability, Fencing};
///
/// let table = Capabilities::minimal("table").durability(Durability::Durable);
/// assert_eq!(table.fencing, Fencing::None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The backend's name in messages and log fields: `memory`, `redis`, ….
    pub backend: &'static str,
    /// Grade of the fencing tokens.
    pub fencing: Fencing,
    /// Order in which waiters are served.
    pub order: Order,
    /// How waiters wake up.
    pub wakeup: Wakeup,
    /// The failures that a held lock survives.
    pub durability: Durability,
    /// The clients that a lock excludes.
    pub reach: Reach,
    /// Shortest lease that can be asked for.
    pub ttl_min: Duration,
    /// Longest lease that can be asked for.
    pub ttl_max: Duration,
    /// Taken off each lease, with one per cent of it, to give the holder's deadline.
    pub margin: Duration,
    /// Bound on takeover after a crash.
    pub takeover: Takeover,
    /// How long a release may leave the lock free although claims are queued, for clients that poll
    /// beside this library. `None`: not at all. Then core does not hand locks over [inside the
    /// process](crate::LockerBuilder::local_handovers) either.
    pub polling_share: Option<Duration>,
    /// Whether a hold can be handed to another process, which then knows the owner id.
    pub detached: Support,
    /// Whether [`ReleaseMode::keep`](crate::backend::ReleaseMode::keep) is honoured by the server.
    pub minimum_hold: Support,
    /// Whether an attempt that reaches the server after its claim was released is refused. Or it
    /// takes a free lock, and the next attempt of any client of this library removes it.
    pub late_attempts_refused: Support,
    /// Whether [`Claim::min_token`](crate::backend::Claim::min_token) is honoured.
    pub min_token_supported: Support,
    /// Whether a holder is notified at once that its lock was removed, and not by its next renewal.
    /// Core then calls [`wait_lost`](crate::Backend::wait_lost) for held claims.
    pub loss_push: Support,
    /// Whether [`inspect`](crate::Locker::inspect) works.
    pub inspecting: Support,
    /// Whether [`list`](crate::Locker::list) works.
    pub listing: Support,
    /// Whether [`break_lock`](crate::Locker::break_lock) works.
    pub breaking: Support,
}

impl Capabilities {
    /// Returns the capabilities of a backend that promises the least: each grade is the lowest, and
    /// each optional verb is absent. A lease lasts from 1 ms to 24 h, without a margin. The next
    /// waiter has the lock 1 s after a crashed holder's lease ended. A capability that a later
    /// version adds has its lowest grade, too.
    pub const fn minimal(backend: &'static str) -> Self {
        Self {
            backend,
            fencing: Fencing::None,
            order: Order::PerProcess,
            wakeup: Wakeup::Poll,
            durability: Durability::Advisory,
            reach: Reach::Process,
            ttl_min: Duration::from_millis(1),
            ttl_max: Duration::from_secs(24 * 3600),
            margin: Duration::ZERO,
            takeover: Takeover::LeasePlus(Duration::from_secs(1)),
            polling_share: None,
            detached: Support::Absent,
            minimum_hold: Support::Absent,
            late_attempts_refused: Support::Absent,
            min_token_supported: Support::Absent,
            loss_push: Support::Absent,
            inspecting: Support::Absent,
            listing: Support::Absent,
            breaking: Support::Absent,
        }
    }
}

macro_rules! setters {
    ($($field:ident: $grade:ty,)*) => {
        /// Each setter returns the capabilities with one field changed.
        impl Capabilities {
            $(
                #[doc = concat!("Sets the field `", stringify!($field), "`.")]
                #[must_use]
                pub const fn $field(mut self, $field: $grade) -> Self {
                    self.$field = $field;
                    self
                }
            )*
        }
    };
}

setters! {
    backend: &'static str,
    fencing: Fencing,
    order: Order,
    wakeup: Wakeup,
    durability: Durability,
    reach: Reach,
    ttl_min: Duration,
    ttl_max: Duration,
    margin: Duration,
    takeover: Takeover,
    polling_share: Option<Duration>,
    detached: Support,
    minimum_hold: Support,
    late_attempts_refused: Support,
    min_token_supported: Support,
    loss_push: Support,
    inspecting: Support,
    listing: Support,
    breaking: Support,
}

/// The capabilities that an application needs. Start from the default, which asks for nothing.
///
/// ```
/// use lock_core::{Fencing, Locker, Memory, Reach, Requirements};
///
/// let locks = Locker::new(Memory::new());
/// assert!(locks.require(&Requirements { fencing: Fencing::Seeded, ..Default::default() }).is_ok());
/// let error = locks.require(&Requirements { reach: Reach::Network, ..Default::default() }).unwrap_err();
/// assert_eq!(error.to_string(), "the memory backend does not meet the requirements: reach is Process, Network is required");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requirements {
    /// At least this grade of fencing.
    pub fencing: Fencing,
    /// At least this order.
    pub order: Order,
    /// At least this way of waking up.
    pub wakeup: Wakeup,
    /// At least as durable.
    pub durability: Durability,
    /// At least this reach.
    pub reach: Reach,
    /// Detached holds.
    pub detached: Support,
    /// Minimum holds that outlive the holder's process.
    pub minimum_hold: Support,
    /// Holders that are notified at once if their lock is removed.
    pub loss_push: Support,
    /// `inspect`.
    pub inspecting: Support,
    /// `list`.
    pub listing: Support,
    /// `break_lock`.
    pub breaking: Support,
}

impl Requirements {
    /// Checks them against the capabilities of a backend.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`], naming everything that is missing.
    pub fn check(&self, capabilities: &Capabilities) -> Result<(), Error> {
        let mut missing = Vec::new();
        demand(&mut missing, "fencing", capabilities.fencing, self.fencing);
        demand(&mut missing, "order", capabilities.order, self.order);
        demand(&mut missing, "wakeup", capabilities.wakeup, self.wakeup);
        demand(&mut missing, "durability", capabilities.durability, self.durability);
        demand(&mut missing, "reach", capabilities.reach, self.reach);
        demand(&mut missing, "detached", capabilities.detached, self.detached);
        demand(&mut missing, "minimum_hold", capabilities.minimum_hold, self.minimum_hold);
        demand(&mut missing, "loss_push", capabilities.loss_push, self.loss_push);
        demand(&mut missing, "inspecting", capabilities.inspecting, self.inspecting);
        demand(&mut missing, "listing", capabilities.listing, self.listing);
        demand(&mut missing, "breaking", capabilities.breaking, self.breaking);
        if missing.is_empty() {
            return Ok(());
        }
        let backend = capabilities.backend;
        let message =
            format!("the {backend} backend does not meet the requirements: {}", missing.join(", "));
        Err(Error::new(ErrorKind::Unsupported, message))
    }
}

fn demand<G: PartialOrd + fmt::Debug + Copy>(
    missing: &mut Vec<String>,
    what: &str,
    declared: G,
    required: G,
) {
    if declared < required {
        missing.push(format!("{what} is {declared:?}, {required:?} is required"));
    }
}
