//! The list of all saboteurs.

use std::sync::LazyLock;

use super::release::{NeverReleases, RetriesReleasesBlindly};
use super::renewal::NeverRenews;
use super::saboteur::{Saboteur, saboteur};
use super::{
    cancellation, exclusion, fencing, inspection, limits, loss, network, outcomes, release,
    renewal, secrets, server, waiting,
};

/// Returns all saboteurs that checks of laws must catch.
#[must_use]
pub fn all() -> &'static [Saboteur] {
    &SABOTEURS
}

/// Returns the saboteurs for whole runs of many clients. No check of a law must catch them.
#[must_use]
pub fn of_runs() -> &'static [Saboteur] {
    OF_RUNS
}

static OF_RUNS: &[Saboteur] =
    &[saboteur!(RetriesReleasesBlindly), saboteur!(NeverRenews), saboteur!(NeverReleases)];

/// The saboteurs in the order of the laws' chapters.
static SABOTEURS: LazyLock<Vec<Saboteur>> = LazyLock::new(|| {
    let chapters = [
        exclusion::SABOTEURS,
        renewal::SABOTEURS,
        loss::SABOTEURS,
        release::SABOTEURS,
        fencing::SABOTEURS,
        waiting::SABOTEURS,
        cancellation::SABOTEURS,
        outcomes::SABOTEURS,
        inspection::SABOTEURS,
        limits::SABOTEURS,
        secrets::SABOTEURS,
        network::SABOTEURS,
        server::SABOTEURS,
    ];
    chapters.concat()
});
