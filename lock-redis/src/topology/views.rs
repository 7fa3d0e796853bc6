//! The location of the primary, as each sentinel last reported it.

use std::time::Duration;

use lock_core::clock::Moment;

use crate::connection::address::ServerLocation;

/// How long the view of a lost sentinel counts. The others learn within seconds of its knowledge.
pub(crate) const VIEW_RETENTION: Duration = Duration::from_secs(60);

/// The receiver of the reports of sentinels.
pub(crate) trait ViewObserver: Send + Sync + 'static {
    /// Records a report of a sentinel.
    fn reported(&self, sentinel: usize, location: ServerLocation);

    /// Records that the connection to a sentinel ended.
    fn disconnected(&self, sentinel: usize);

    /// Records that the task that listens to a sentinel ended, with its runtime.
    fn listener_ended(&self, sentinel: usize);
}

/// The last report of each sentinel.
#[derive(Debug, Default)]
pub(crate) struct SentinelViews(Vec<SentinelView>);

#[derive(Clone, Debug, Default)]
pub(crate) struct SentinelView {
    pub(crate) location: Option<ServerLocation>,
    /// How often it spoke by itself.
    pub(crate) reports: u64,
    /// The time since which no listener is connected to it.
    gone_since: Option<Moment>,
}

impl SentinelViews {
    pub(crate) fn of(sentinels: usize) -> Self {
        Self(vec![SentinelView::default(); sentinels])
    }

    pub(crate) fn report(&mut self, sentinel: usize, location: ServerLocation) {
        let reports = self.0[sentinel].reports + 1;
        self.0[sentinel] = SentinelView { location: Some(location), reports, gone_since: None };
    }

    /// Returns how often each sentinel reported on its own.
    pub(crate) fn reports(&self) -> Vec<u64> {
        self.0.iter().map(|view| view.reports).collect()
    }

    /// Applies answers to a question asked after `asked_at` reports. A sentinel that has reported
    /// since may have sent newer information.
    pub(crate) fn answered(&mut self, answers: &[(usize, ServerLocation)], asked_at: &[u64]) {
        for (sentinel, answer) in answers {
            let view = &mut self.0[*sentinel];
            if asked_at.get(*sentinel) == Some(&view.reports) {
                (view.location, view.gone_since) = (Some(answer.clone()), None);
            }
        }
    }

    pub(crate) fn disconnect(&mut self, sentinel: usize) {
        self.0[sentinel].gone_since.get_or_insert_with(Moment::now);
    }

    /// Returns the location of the locks: the one with the highest epoch, and among equals the one
    /// with the most votes.
    pub(crate) fn best(&self) -> Option<&ServerLocation> {
        let there: Vec<_> = self.0.iter().filter_map(SentinelView::connected_location).collect();
        match there.len() > self.0.len() / 2 {
            true => newest(&there),
            false => {
                newest(&self.0.iter().filter_map(SentinelView::recent_location).collect::<Vec<_>>())
            }
        }
    }

    /// Returns true if the locks have moved away from `known`.
    pub(crate) fn have_moved_from(&self, known: &ServerLocation) -> bool {
        let Some(best) = self.best().filter(|best| best.address != known.address) else {
            return false;
        };
        let there = self.0.iter().filter_map(SentinelView::connected_location);
        // Sentinels without epochs, or that count anew, need a majority.
        (best.epoch > Some(0) && best.epoch >= known.epoch)
            || there.filter(|location| location.address == best.address).count() > self.0.len() / 2
    }
}

impl SentinelView {
    fn connected_location(&self) -> Option<&ServerLocation> {
        self.location.as_ref().filter(|_| self.gone_since.is_none())
    }

    fn recent_location(&self) -> Option<&ServerLocation> {
        let is_over = |since: Moment| (since + VIEW_RETENTION).has_passed();
        self.location.as_ref().filter(|_| !self.gone_since.is_some_and(is_over))
    }
}

/// Returns the location with the highest epoch that most sentinels name.
pub(crate) fn newest<'f>(all: &[&'f ServerLocation]) -> Option<&'f ServerLocation> {
    let votes = |one: &ServerLocation| all.iter().filter(|other| **other == one).count();
    all.iter().copied().max_by_key(|found| (found.epoch, votes(found)))
}
