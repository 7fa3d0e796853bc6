//! Totals of the results of a backend.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::figures::prompt;
use crate::collector::Effects;
use crate::fault_traffic::FaultTraffic;
use crate::kind::Kind;
use crate::outcome::{Outcome, Prompt, Settings, command_name};
use crate::times::{Losses, Spread};

/// The settings and the code of a result.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Origin<'a> {
    pub(super) settings: &'a Settings,
    pub(super) code: Option<&'a str>,
}

#[derive(Default)]
pub(super) struct Total<'a> {
    pub(super) backend: &'a str,
    pub(super) outcomes: Vec<&'a Outcome>,
    pub(super) took: Duration,
    pub(super) operations: u64,
    pub(super) grants: u64,
    pub(super) unknown: u64,
    pub(super) faults: u64,
    pub(super) around: BTreeMap<Kind, FaultTraffic>,
    /// The calls of each verb, and the hits of holders.
    pub(super) draws: BTreeMap<String, u64>,
    /// The grants in the runs that counted draws.
    pub(super) drawn_grants: u64,
    pub(super) effects: Effects,
    pub(super) losses: Losses,
    pub(super) takeovers: Spread,
    pub(super) hand_offs: Spread,
    /// The standstills after failovers and restarts with older data, by the kind of fault.
    pub(super) standstills: BTreeMap<String, Spread>,
    /// The promised bound of standstills, and the allowance for the load of the machine.
    pub(super) resumes: Option<[Duration; 2]>,
    /// The hand-offs that no fault disturbed.
    pub(super) prompt: Spread,
    /// The number of runs that judged undisturbed hand-offs.
    judged: usize,
    pub(super) excused_overlaps: u64,
    pub(super) claims_at_risk: u64,
    pub(super) undisturbed: u64,
    pub(super) unexplained: u64,
    waits: u64,
    judged_waits: u64,
    verdicts: BTreeSet<u32>,
}

/// Returns a total for each backend, without results of planted bugs.
pub(super) fn totals(outcomes: &[Outcome]) -> Vec<Total<'_>> {
    let mut totals: BTreeMap<&str, Total<'_>> = BTreeMap::new();
    for outcome in outcomes.iter().filter(|outcome| outcome.settings.bug.is_none()) {
        let total = || Total { backend: &outcome.backend, ..Total::default() };
        totals.entry(&outcome.backend).or_insert_with(total).add(outcome);
    }
    totals.into_values().collect()
}

/// Formats a share, or `–` of none.
fn share(some: u64, all: u64) -> String {
    if all == 0 { "–".to_owned() } else { format!("{some} of {all}") }
}

/// Formats the code of a result, to follow the seeds.
pub(super) fn of_code(origin: Origin<'_>) -> String {
    origin.code.map_or_else(String::new, |code| format!(", of {code}"))
}

impl<'a> Total<'a> {
    fn add(&mut self, outcome: &'a Outcome) {
        self.outcomes.push(outcome);
        self.took += outcome.took;
        self.operations += outcome.operations as u64;
        self.grants += outcome.grants as u64;
        self.unknown += outcome.unknown as u64;
        self.faults += outcome.faults();
        for (kind, around) in &outcome.around {
            self.around.entry(*kind).or_default().add(around);
        }
        for (verb, count) in &outcome.draws {
            *self.draws.entry(verb.clone()).or_default() += count;
        }
        let is_counted = !outcome.draws.is_empty();
        self.drawn_grants += if is_counted { outcome.grants as u64 } else { 0 };
        self.effects.add(&outcome.effects);
        self.losses.add(&outcome.losses);
        self.takeovers.add(&outcome.takeovers);
        self.hand_offs.add(&outcome.hand_offs);
        for (kind, longest) in &outcome.standstills {
            self.standstills.entry(kind.clone()).or_default().add(longest);
        }
        self.resumes = outcome.resumes.or(self.resumes);
        if let Some(prompt) = &outcome.prompt {
            self.prompt.add(&prompt.took);
            self.judged += usize::from(prompt.judged);
        }
        self.excused_overlaps += outcome.excused_overlaps;
        self.claims_at_risk += outcome.claims_at_risk;
        self.undisturbed += outcome.undisturbed;
        self.unexplained += outcome.unexplained;
        self.waits += outcome.waits;
        self.judged_waits += outcome.judged_waits;
        self.verdicts.insert(outcome.verdict);
    }

    /// Returns the last result of the newest verdict. All results of one verdict have the same
    /// refused kinds, refused verbs and bounds.
    pub(super) fn last(&self) -> &'a Outcome {
        let last = self.outcomes.iter().max_by_key(|outcome| outcome.verdict);
        last.expect("a total is made for a result")
    }

    /// Formats the versions of the verdict, such as `1, 2`.
    pub(super) fn verdicts(&self) -> String {
        self.verdicts.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Formats the share of undisturbed calls that failed, or `–` if no run counted them.
    pub(super) fn failed(&self) -> String {
        share(self.unexplained, self.undisturbed)
    }

    /// Formats the share of undisturbed waits that were judged, or `–` if no run counted them.
    pub(super) fn waits_judged(&self) -> String {
        share(self.judged_waits, self.waits)
    }

    /// Formats the median and the 90th percentile of undisturbed hand-offs with their bounds, or
    /// `–` if no run counted them.
    pub(super) fn promptness(&self) -> String {
        let mut newest_first = self.outcomes.iter().rev();
        let Some(bounds) = newest_first.find_map(|outcome| outcome.prompt.as_ref()) else {
            return "–".to_owned();
        };
        let (count, judged, runs) = (self.prompt.count, self.judged, self.outcomes.len());
        let text = prompt(&Prompt { took: self.prompt.clone(), ..bounds.clone() });
        match judged {
            0 => format!("{text}; of {count}: too few"),
            _ => format!("{text}; of {count}, enough in {judged} of {runs} runs"),
        }
    }

    pub(super) fn clean(&self) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.is_clean()).count()
    }

    /// Groups the seeds by settings and code.
    pub(super) fn by_settings(&self) -> Vec<(Origin<'a>, Vec<u64>)> {
        let mut groups: Vec<(Origin<'_>, Vec<u64>)> = Vec::new();
        for outcome in &self.outcomes {
            let origin = Origin { settings: &outcome.settings, code: outcome.code.as_deref() };
            match groups.iter_mut().find(|(of, _)| *of == origin) {
                Some((_, seeds)) => seeds.push(outcome.seed),
                None => groups.push((origin, vec![outcome.seed])),
            }
        }
        groups
    }

    /// Returns the command that repeats one of these seeds.
    pub(super) fn command(&self, settings: &Settings) -> String {
        let name = command_name(self.backend);
        format!("lock-campaign run {name} --seed SEED{}", settings.to_arguments())
    }
}
