//! The laws: numbers, promises, checks.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use lock_core::{Fencing, Order, Support, Wakeup};

use crate::context::{Ctx, Verdict};
use crate::harness::TestEnv;

mod cancellation;
mod exclusion;
mod fencing;
mod handover;
mod inspection;
mod limits;
mod loss;
mod network;
mod outcomes;
mod release;
mod renewal;
mod secrets;
mod server;
mod waiting;

type Checking = Pin<Box<dyn Future<Output = Verdict>>>;

/// One numbered law.
pub struct Law {
    /// Chapter and number. Never reused for another promise.
    pub number: &'static str,
    /// The check's name.
    pub name: &'static str,
    /// The backends that must keep the law.
    pub level: Level,
    /// The promise.
    pub promise: &'static str,
    /// The failure in practice if the promise is not kept.
    pub because: &'static str,
    /// Whether the check takes long on a real clock.
    ///
    /// Tests of one backend on several kinds of servers may leave it to the long runs.
    pub is_slow: bool,
    declared: fn(&TestEnv) -> bool,
    check: fn(Arc<Ctx>) -> Checking,
    absent: Option<fn(Arc<Ctx>) -> Checking>,
}

/// The backends that must keep a law.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Every backend.
    Must,
    /// Backends that declare the capability. For the others, its absence is checked where it could
    /// be mistaken for there.
    IfDeclared,
    /// Every backend; checked on many random runs, so a pass is no proof.
    Stochastic,
}

/// The way in which a law applies to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applies {
    /// The backend must keep the law.
    Declared,
    /// The capability must be absent.
    Absent,
    /// Neither a promise nor a check applies.
    Unpromised,
}

impl Law {
    /// Returns the part of the number before the point.
    #[must_use]
    pub fn chapter(&self) -> &'static str {
        self.number.split('.').next().unwrap_or(self.number)
    }

    /// Returns whether the law applies only to backends on a network.
    #[must_use]
    pub fn is_about_networks(&self) -> bool {
        matches!(self.chapter(), "12" | "13")
    }

    /// Returns how this law applies to a backend with its harness.
    #[must_use]
    pub fn applies_to(&self, env: &TestEnv) -> Applies {
        if (self.declared)(env) {
            Applies::Declared
        } else if self.absent.is_some() {
            Applies::Absent
        } else {
            Applies::Unpromised
        }
    }

    /// Checks the law, or the absence of the capability.
    pub(crate) async fn check(&self, ctx: Arc<Ctx>) -> Verdict {
        match self.absent {
            Some(absent) if !(self.declared)(&ctx.env) => absent(ctx).await,
            _ => (self.check)(ctx).await,
        }
    }

    const fn must(
        number: &'static str,
        name: &'static str,
        check: fn(Arc<Ctx>) -> Checking,
    ) -> Self {
        Self {
            number,
            name,
            level: Level::Must,
            promise: "",
            because: "",
            is_slow: false,
            declared: |_| true,
            check,
            absent: None,
        }
    }

    const fn if_declared(mut self, declared: fn(&TestEnv) -> bool) -> Self {
        self.level = Level::IfDeclared;
        self.declared = declared;
        self
    }

    const fn or_absent(mut self, absent: fn(Arc<Ctx>) -> Checking) -> Self {
        self.absent = Some(absent);
        self
    }

    const fn slow(mut self) -> Self {
        self.is_slow = true;
        self
    }

    const fn stochastic(mut self) -> Self {
        self.level = Level::Stochastic;
        self
    }

    const fn promise(mut self, promise: &'static str, because: &'static str) -> Self {
        self.promise = promise;
        self.because = because;
        self
    }
}

impl fmt::Debug for Law {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Law({} {})", self.number, self.name)
    }
}

/// Makes a law with the name of its check: `law!(number, module::check)`.
macro_rules! law {
    ($number:literal, $module:ident :: $check:ident) => {
        Law::must($number, stringify!($check), |ctx| Box::pin($module::$check(ctx)))
    };
}

macro_rules! check {
    ($module:ident :: $check:ident) => {
        |ctx| Box::pin($module::$check(ctx))
    };
}

/// Returns all laws, ordered by number.
#[must_use]
pub fn all() -> &'static [Law] {
    LAWS
}

/// Returns the law with this number.
#[must_use]
pub fn by_number(number: &str) -> Option<&'static Law> {
    LAWS.iter().find(|law| law.number == number)
}

fn leases(env: &TestEnv) -> bool {
    env.caps.takeover != lock_core::Takeover::AtOnce
}

fn network(env: &TestEnv) -> bool {
    env.network
}

fn network_and_leases(env: &TestEnv) -> bool {
    network(env) && leases(env)
}

/// Returns whether the server sends grants whose lease can be inspected.
///
/// A lock that can be detached has a visible lease of its own on the server. The lease of a session
/// is not visible.
fn sent_over_a_network(env: &TestEnv) -> bool {
    let caps = &env.caps;
    let is_seen = caps.detached == Support::Present && caps.inspecting == Support::Present;
    network_and_leases(env) && caps.wakeup == Wakeup::HandOff && is_seen
}

fn server(env: &TestEnv) -> bool {
    env.server
}

fn server_and_leases(env: &TestEnv) -> bool {
    server(env) && leases(env)
}

static LAWS: &[Law] = &[
    law!("1.1", exclusion::a_held_lock_is_contended).promise(
        "While a claim holds a lock, every other claim's attempt is answered Contended: through another client, and through the same one.",
        "Two holders at once is what a lock is there to prevent; a client that mistakes its own second task for the first is the subtle form.",
    ),
    law!("1.2", exclusion::the_same_claim_is_the_same_acquisition).promise(
        "An attempt repeated by the claim that holds the lock is answered Acquired, with the same token or a higher one, and a lease that ends no earlier.",
        "A reply can be lost. A client that asks again and gets 'contended' has locked itself out for a lease.",
    ),
    law!("1.3", exclusion::the_lease_counts_from_before_the_request).promise(
        "However late the answer to an attempt or a renewal comes, the holder's deadline counts from before the request was sent.",
        "A lease counted from the answer outlives the server's by the time that the answer took.",
    ).if_declared(leases).or_absent(check!(exclusion::there_are_no_leases)),
    law!("1.4", exclusion::claims_never_overlap).stochastic().promise(
        "The claims of two grants never overlap: from the return of acquire to the call of release, the loss, or the deadline, whichever is first.",
        "This is the exclusion that the application sees, with holders that pause, forget to release, or die.",
    ),
    law!("2.1", renewal::a_renewal_moves_the_lease).promise(
        "An acknowledged renewal makes the lock last at least the ttl from then, on the server too.",
        "A renewal that is acknowledged and not done turns a healthy holder into a second one.",
    ).if_declared(leases).or_absent(check!(exclusion::there_are_no_leases)),
    law!("2.2", renewal::a_renewal_never_recreates).promise(
        "Renewing a claim that was released, or never won, is answered NotHeld and leaves the lock free.",
        "A renewal delayed in the network would otherwise take a lock that its holder had given back.",
    ),
    law!("2.3", renewal::a_renewal_never_adopts).promise(
        "Renewing while another owner holds the lock is answered NotHeld and changes nothing for that owner.",
        "A client that adopts the hold that it finds under the name believes in a lock of another client.",
    ),
    law!("2.4", renewal::a_renewal_never_shortens).promise(
        "A renewal with a shorter ttl than what is left of the lease leaves the end of the lease where it was.",
        "A late renewal of 30 s must not cut an extension of 10 min that was acknowledged before.",
    ).if_declared(leases).or_absent(check!(exclusion::there_are_no_leases)),
    law!("2.5", renewal::a_batch_is_answered_claim_by_claim).promise(
        "A batch of renewals gets one answer for each claim, in the order of the claims.",
        "With answers in another order, the wrong holder is notified of a loss, and the right one is not.",
    ),
    law!("2.6", renewal::an_answer_leaves_time_to_work).promise(
        "When acquire, verify or extend succeeds, a tenth of the ttl is left, or 100 ms if that is less; on a backend that answers at once, they succeed.",
        "A caller that gets a lock with a millisecond of lease left writes after the end of its lease.",
    ),
    law!("3.1", loss::a_removal_is_noticed).promise(
        "The holder of a lock that was removed on the server learns of it by its next renewal, and its release does not say Released.",
        "A lost lock whose holder is never notified.",
    ).if_declared(|env| env.can_evict || env.caps.breaking == Support::Present),
    law!("3.2", loss::a_silent_backend_is_a_loss_in_time).promise(
        "If no renewal is answered, the holder loses the lock at its deadline, before another client can acquire it; a later answer revives nothing.",
        "A lock library that waits for TCP to fail treats its lock as held for minutes.",
    ).if_declared(leases).or_absent(check!(exclusion::there_are_no_leases)),
    law!("3.3", loss::a_removal_is_pushed).promise(
        "The holder of a lock that was removed on the server is notified without waiting for its next renewal.",
        "An operator breaks the lock of a job that hangs, and starts it again: for a third of a lease there would be two.",
    ).if_declared(|env| {
        env.caps.loss_push == Support::Present && (env.can_evict || env.caps.breaking == Support::Present)
    }),
    law!("3.4", loss::a_holder_learns_of_its_loss_within_the_margin).promise(
        "After a holder's deadline, also one by a maximum hold, its lock stays unavailable for the margin as long as the guard exists. A task that polls `lost()` within the margin learns of the loss before the next one holds the lock.",
        "A holder that is notified a moment after the grant to its successor writes beside it.",
    ),
    law!("3.5", loss::a_release_beside_a_loss_watch_ends).promise(
        "A release ends while a loss watch of its claim runs, and so do the other calls of its thread.",
        "A watch whose claim was released under it may poll for ever, and then no lock of the process is renewed.",
    ).if_declared(|env| env.caps.loss_push == Support::Present),
    law!("4.1", release::a_release_frees_the_lock).promise(
        "After a release is answered Released, or a guard is dropped, the lock is free. An attempt before that answer may be contended.",
        "Otherwise each release costs the next holder a lease.",
    ),
    law!("4.2", release::a_release_affects_no_other_claim).promise(
        "The release of a claim that does not hold the lock is answered NotHeld, and the holder keeps it.",
        "The unlock of another client's lock: a late holder frees the lock of its successor.",
    ),
    law!("4.3", release::a_second_release_is_not_held).promise(
        "The second release of a claim is answered NotHeld.",
        "A release that always says yes hides that the lock was lost before.",
    ),
    law!("4.4", release::a_release_leaves_the_queue).promise(
        "The release of a queued claim removes its queue entry: the lock is never handed to it.",
        "A queue entry without a waiter costs every waiter behind it a lease.",
    ).if_declared(|env| env.caps.order == Order::Fifo),
    law!("4.5", release::a_late_attempt_is_refused).promise(
        "An attempt that reaches the server after its claim was released with an unknown outcome is refused, or its lock is free for the next attempt of any client of this library.",
        "A request that was still in a socket would lock the name for a whole lease, without a holder.",
    ).if_declared(|env| env.caps.late_attempts_refused == Support::Present),
    law!("4.6", release::a_minimum_hold_is_kept_and_not_longer).promise(
        "A lock with a minimum hold that is released early stays unavailable until then, also after a wait. The minimum counts from the arrival of the grant, and so not from before the release of the previous holder, and is exceeded by the margin at most.",
        "A cron job that ends in a second runs again on the host whose clock is two seconds behind.",
    ),
    law!("4.7", release::a_retried_release_reports_gone).promise(
        "A release whose first answer was lost ends as Gone, not as Ok and not as NotHeld, and a newer holder is not touched by it. A release that meets a removal by force (A3) may end as NotHeld, though it freed the rest.",
        "A retry that frees a newer holder's lock, or that claims an outcome it cannot know.",
    ),
    law!("4.8", release::a_failed_release_bounds_the_rest).promise(
        "A release that ends as an error without an answer says within which time the lock is free, and a waiter holds it by then.",
        "A program that starts its job again after that time still finds the lock held.",
    ).if_declared(leases).or_absent(check!(exclusion::there_are_no_leases)),
    law!("4.9", release::a_released_claim_may_come_again).promise(
        "A claim whose release was answered may be attempted again, unless that release expected a late attempt. Nothing that is left of its earlier attempts and grants ends the new hold.",
        "A quorum gives back the votes of a claim and asks for them again. A member that takes back an earlier vote ends the new hold.",
    ),
    law!("5.1", fencing::tokens_grow).promise(
        "Each grant's token is higher than that of the grant before, for every client and every way: through another client, pushed, after an expiry, after a break. A renewal has the token of its grant.",
        "A resource that checks tokens refuses the rightful holder, or accepts a late one.",
    ).if_declared(|env| env.caps.fencing > Fencing::None).or_absent(check!(fencing::there_are_no_tokens)),
    law!("5.2", fencing::a_minimum_token_is_exceeded).promise(
        "An attempt with a min_token gets a token above it, also if the same claim got a lower one before, and inspecting shows no lower one.",
        "A quorum whose members disagree cannot agree on a growing token otherwise.",
    ).if_declared(|env| env.caps.min_token_supported == Support::Present && env.caps.fencing > Fencing::None),
    law!("5.3", fencing::the_low_bits_are_left_to_core).promise(
        "The low eight bits of a backend's tokens are zero, and the whole is below 2^63.",
        "They are kept for hand-overs inside one process, which must not overtake the next grant.",
    ).if_declared(|env| env.caps.fencing > Fencing::None).or_absent(check!(fencing::there_are_no_tokens)),
    law!("6.1", waiting::a_waiter_is_served_without_any_signal).promise(
        "A waiter whose notifications are all lost is served within a lease of the release.",
        "A missed wake-up: a waiter that sleeps for ever beside a free lock.",
    ),
    law!("6.2", waiting::a_signal_wakes).promise(
        "A waiter is served promptly after the release, and does not sleep until its own next poll.",
        "Without the notification, the declared wake-up is a poll.",
    ).if_declared(|env| env.caps.wakeup >= Wakeup::Signal),
    law!("6.3", waiting::waiters_are_served_in_order).promise(
        "Waiters are served in the order in which their first attempts reached the server.",
        "Without order, the waiter that waits longest may wait for ever.",
    ).if_declared(|env| env.caps.order == Order::Fifo),
    law!("6.4", waiting::one_process_is_served_in_order).promise(
        "Waiters of one locker are served in the order in which they began to wait.",
        "Inside one process, order costs nothing.",
    ),
    law!("6.5", waiting::a_try_leaves_no_queue_entry).promise(
        "A contended attempt that does not queue has no queue entry: the lock is never handed to it, and it delays no waiter.",
        "Otherwise each failed attempt would leave a stale queue entry.",
    ),
    law!("6.6", waiting::a_crashed_holder_is_replaced).promise(
        "When a holder vanishes without a release, a waiter holds the lock within the declared bound, and on leases not before the holder's deadline.",
        "A lock that stays held after a crash, or is granted while its holder still works.",
    ),
    law!("6.7", waiting::a_queue_entry_expires).promise(
        "The queue entry of a claim that has vanished expires: the lock is not handed to it once two leases and five seconds have passed since its last attempt.",
        "Each waiter that crashes would cost every later waiter a claim lease.",
    ).if_declared(|env| env.caps.order == Order::Fifo),
    law!("7.1", cancellation::a_dropped_acquisition_leaves_nothing).promise(
        "An acquisition that is dropped at any await leaves no lock and no queue entry, and keeps no other waiter waiting.",
        "Timeouts and select drop futures at every await; residue keeps the lock unavailable for a lease.",
    ),
    law!("7.2", cancellation::a_dropped_release_is_finished).promise(
        "A release whose future is dropped at any await is finished in the background.",
        "A caller that does not wait for the answer still wants the lock to be free.",
    ),
    law!("7.3", cancellation::a_dropped_acquisition_keeps_no_minimum_hold).promise(
        "An acquisition that asked for a minimum hold and is dropped at any await keeps no client out: the minimum begins when the caller has the guard.",
        "A caller that times out after 50 ms blocks the job's lock for an hour, and no host runs the job.",
    ),
    law!("8.1", outcomes::a_lost_reply_locks_no_client_out).promise(
        "An attempt that was applied and whose reply was lost ends in a grant to a waiter, or leaves no lock: never a lock without a holder.",
        "A client that contends with its own lost attempt waits for a lease.",
    ),
    law!("8.2", outcomes::a_fault_is_never_contention).promise(
        "A call that the backend does not answer ends within its bound, as an error and not as contention; contention is never an error.",
        "A job that does not run because 'another host holds the lock', while the server is down.",
    ),
    law!("9.1", inspection::inspect_shows_the_holder).promise(
        "Inspecting a held lock shows its owner and no token but the grant's, and that one from the first renewal on; inspecting a free one shows no holder; neither changes anything.",
        "At 3 a.m. an operator has to find the holder of a lock.",
    ).if_declared(|env| env.caps.inspecting == Support::Present).or_absent(check!(inspection::inspect_is_refused)),
    law!("9.2", inspection::a_break_ends_the_expected_holder_only).promise(
        "Breaking a lock ends the hold of the expected owner and of no other.",
        "Between inspection and break the lock may have passed on; the break must not end the newer hold.",
    ).if_declared(|env| env.caps.breaking == Support::Present).or_absent(check!(inspection::break_is_refused)),
    law!("9.3", inspection::a_list_is_sorted_and_paged).promise(
        "A list shows held locks only, sorted by name, those that start with the prefix and come after the given name, no more than the limit, and fewer only at the end.",
        "A page that repeats or skips entries hides the stuck lock from an operator.",
    ).if_declared(|env| env.caps.listing == Support::Present).or_absent(check!(inspection::list_is_refused)),
    law!("9.4", inspection::a_detached_lock_passes_on).promise(
        "A detached lock stays held until its lease ends; a client with its owner id can adopt, renew and release it, and no other client can.",
        "A shell script acquires in one process and releases in another.",
    ).if_declared(|env| env.caps.detached == Support::Present).or_absent(check!(inspection::detach_is_refused)),
    law!("10.1", limits::awkward_names_are_different_locks).promise(
        "Every non-empty name up to 64 KiB is a lock, and different names are different locks.",
        "Names that are cut, folded or joined make two jobs exclude each other, or not exclude at all.",
    ),
    law!("10.2", limits::the_declared_leases_work).promise(
        "The shortest and the longest declared ttl can be asked for and last as long as they say; other values are refused before a request is sent.",
        "A lease of half a second that becomes endless, or one of a month that ends at once.",
    ),
    law!("11.1", secrets::no_output_holds_an_owner_id).promise(
        "No Debug output, error or trace holds an owner id.",
        "The name of a lock and its owner id are the right to unlock it, and logs travel.",
    ),
    law!("12.1", network::a_cut_attempt_leaves_nothing).promise(
        "An attempt whose connection is cut before the answer ends at once, as unknown, or as not applied where the lock has been released by then. The lock is released within the bound of a call, and a waiter is served.",
        "A SET NX that was applied and not answered locks the name for a lease, also against its own client.",
    ).if_declared(network),
    law!("12.2", network::a_cut_release_ends_as_gone).promise(
        "A release whose connection is cut before the answer is repeated, and ends as Gone with the lock free.",
        "A failed release that forgets its owner id cannot be repeated; a blind repetition frees the next holder's lock.",
    ).if_declared(network),
    law!("12.3", network::a_black_hole_is_a_loss_in_time).promise(
        "A holder whose network swallows everything without closing a connection loses the lock at its deadline, before the next grant. Late requests do no harm.",
        "Without a RST, TCP itself takes minutes to fail.",
    ).if_declared(network_and_leases),
    law!("12.4", network::a_short_outage_loses_nothing).promise(
        "A lock outlives a swallowed renewal, and a connection that was reset, if the network is back before the deadline.",
        "A failed renewal is not a lost lock: a client that gives up at the first failure loses all its locks at each short outage.",
    ).if_declared(network_and_leases),
    law!("12.5", network::late_requests_do_no_harm).slow().promise(
        "A request that stayed in the network until its claim was released takes no lock for long, prolongs none and revives none.",
        "A delayed attempt takes a lock without a holder; a delayed renewal revives a lost lock.",
    ).if_declared(network_and_leases),
    law!("12.6", network::answers_are_not_mixed_up).promise(
        "After a call was dropped half-way, every answer belongs to its own request.",
        "A connection that is out of step gives one caller the answer to another: two holders.",
    ).if_declared(network),
    law!("12.7", network::a_broken_connection_is_replaced).promise(
        "After a connection was reset or half closed, calls work again without intervention, also when bytes arrive one by one.",
        "A client that needs a restart after a network problem turns each problem into an outage.",
    ).if_declared(network),
    law!("12.8", network::a_waiter_outlives_its_connection).promise(
        "A waiter whose connection is reset, closed on one side, or swallowed and then reset while the lock is released, is served promptly.",
        "A subscription that died silently: the waiter waits for a message that was sent to no subscriber.",
    ).if_declared(network),
    law!("12.9", network::a_refused_connection_is_not_contention).promise(
        "When every connection is refused, attempts and bounded waits end as errors, in time, and not as contention.",
        "A cron job that skips its run because 'another host holds the lock', while no host does.",
    ).if_declared(network),
    law!("12.10", network::every_call_has_its_bound).slow().promise(
        "On a network that swallows everything, requests only, answers only, or passes a byte now and then, every call ends within its bound.",
        "One call without a bound stops a service for as long as its peer is silent.",
    ).if_declared(network),
    law!("12.11", network::an_undelivered_release_is_finished_later).promise(
        "A lock that is released during a network outage is free soon after the outage, and not only at the end of its lease.",
        "A release that is tried only once keeps the lock unavailable for a lease.",
    ).if_declared(network),
    law!("12.12", network::garbage_is_an_error_and_passes).slow().promise(
        "An invalid answer ends the call as an error within its bound and leaves no lock. The connection is replaced, also if the answer announces more bytes than ever arrive.",
        "After a false length a client waits for bytes that never arrive, in every later call, until the process is restarted.",
    ).if_declared(network),
    law!("12.13", network::a_late_notification_prolongs_no_lease).promise(
        "A waiter that learns late of its grant holds the lock for no longer than the server does.",
        "A lease that counts from the arrival of the notification outlives the lock by the notification's delay.",
    ).if_declared(sent_over_a_network),
    law!("12.14", network::a_lock_outlives_the_runtimes_of_its_callers).slow().promise(
        "A lock whose backend connected on one runtime and that was acquired on another is held for ten leases after both have ended, on the same connection, and can be released then.",
        "A service that connects in one runtime and works in another loses its locks when the first runtime is idle, blocked or gone.",
    ).if_declared(network),
    law!("12.15", network::an_undelivered_release_bounds_the_rest).slow().promise(
        "The time after which the lock is free, in the error of a release that could not be delivered, also counts how long the acquisition was under way.",
        "A server counts a lease from the request's arrival, and may keep the lock for longer than the lease.",
    ).if_declared(network_and_leases),
    law!("13.1", server::a_stopped_server_strands_no_lock).promise(
        "An attempt that a stopped server runs after its client has timed out leaves the lock free within the bound of a call.",
        "The request waits in the server's socket, and runs when its claim has ended.",
    ).if_declared(server),
    law!("13.2", server::a_stopped_server_is_a_loss_in_time).promise(
        "A holder whose server stops for longer than its lease loses the lock at its deadline, and does not get it back when the server continues.",
        "A stalled server keeps its connections open, and its clock runs on.",
    ).if_declared(server_and_leases),
    law!("13.3", server::a_killed_server_is_waited_for).promise(
        "When the server is killed, every holder is notified by its deadline. When it is back, every waiter is served within seconds or a lease, and tokens still grow. It comes back without its data, or with them where tokens are durable.",
        "A restart after which some waiters are never served, or the old and the new holder share a token.",
    ).if_declared(server_and_leases),
    law!("13.4", server::older_data_cost_one_lease_in_all).promise(
        "A server that restarts with older data grants a contended lock again within one lease and 100 ms in total, however many waiters of those data were served long ago.",
        "After a failover each stale entry of the queue costs a lease of its own, and a busy lock is blocked for minutes.",
    ).if_declared(|env| leases(env) && env.can_save),
    law!("14.1", handover::a_hand_over_needs_no_request).promise(
        "With local hand-overs, a released lock passes to the next waiter of the process without an attempt or a release, under an owner id of its own. It stays held for all other processes until the last holder releases it.",
        "Sixty waiters of one process cost the server as much as sixty processes, and each hand-over takes a round trip.",
    ),
    law!("14.2", handover::tokens_of_a_process_grow).promise(
        "Each successor has a higher token than the holder before, and the next grant to any client a higher one still.",
        "Two holders with one token are one holder for the resource that checks it.",
    ).if_declared(|env| env.caps.fencing > Fencing::None).or_absent(check!(fencing::there_are_no_tokens)),
    law!("14.3", handover::others_have_their_turn).promise(
        "After as many hand-overs in a row as were asked for, the lock is released to the server. Where order is declared, the head of the queue gets it then, before waiters of the same process.",
        "A busy process keeps all other processes out for as long as it is busy.",
    ),
    law!("14.4", handover::a_successor_gives_up_in_time).promise(
        "A successor holds the lock for as long as the holder before would have. If no renewal is answered, it loses the lock by then, before another client can acquire it.",
        "A lease that begins anew with each holder outlives the server's by as many holds.",
    ).if_declared(leases).or_absent(check!(exclusion::there_are_no_leases)),
    law!("14.5", handover::a_break_ends_the_whole_cohort).promise(
        "Inspecting shows the holder that the backend granted the lock. If the lock is removed, the current holder learns of it by the next renewal, and hands nothing over.",
        "An operator breaks a lock, and the process still hands it over.",
    ).if_declared(|env| env.can_evict || env.caps.breaking == Support::Present),
    law!("14.6", handover::a_dropped_successor_leaves_nothing).promise(
        "If the waiter to whom a lock is handed over is dropped at that moment, the lock passes to the next waiter or is released.",
        "A lock that was handed to a dropped waiter stays held for a lease.",
    ),
    law!("14.7", handover::a_mismatched_lock_is_released).promise(
        "A lock is released and not handed over if the next waiter asks for another lease. It is not handed over before the end of a minimum hold.",
        "A client that asks for ten seconds, so that a crash costs no more, waits for ten minutes behind another client's lease.",
    ),
    law!("14.8", handover::claims_of_processes_never_overlap).stochastic().promise(
        "The claims of two grants never overlap, also where locks are handed over.",
        "A holder that has released and one that was not notified must not hold at once.",
    ),
];
