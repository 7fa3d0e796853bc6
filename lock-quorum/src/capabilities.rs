//! The capabilities of a quorum: those of its weakest member, since any member may be in the
//! majority behind a grant.

use std::time::Duration;

use lock_core::{Capabilities, Fencing, Order, Support, Takeover, Wakeup};

/// Why a member is refused.
pub(crate) const LEAVES_FREE: &str =
    "it leaves locks free for clients that poll, and not when the other members do";

/// Returns the capabilities that all `members` have. `None` without members.
pub(crate) fn of_all<'a>(
    members: impl IntoIterator<Item = &'a Capabilities>,
) -> Option<Capabilities> {
    let all = members.into_iter().copied().map(quorum_of_one).reduce(weakest)?;
    Some(all)
}

/// Returns the capabilities of a quorum of one member: those that do not depend on the other
/// members.
fn quorum_of_one(member: Capabilities) -> Capabilities {
    let can_agree = member.min_token_supported == Support::Present;
    member
        .backend("quorum")
        // Members that ignore a minimum token cannot agree on a token.
        .fencing(if can_agree { member.fencing } else { Fencing::None })
        .order(Order::PerProcess)
        .wakeup(member.wakeup.min(Wakeup::Signal))
        .min_token_supported(if member.fencing == Fencing::None {
            Support::Absent
        } else {
            member.min_token_supported
        })
        .loss_push(Support::Absent)
        .listing(Support::Absent)
}

fn weakest(a: Capabilities, b: Capabilities) -> Capabilities {
    let fencing = a.fencing.min(b.fencing);
    Capabilities::minimal("quorum")
        .fencing(fencing)
        .wakeup(a.wakeup.min(b.wakeup))
        .durability(a.durability.min(b.durability))
        .reach(a.reach.min(b.reach))
        .ttl_min(a.ttl_min.max(b.ttl_min))
        .ttl_max(a.ttl_max.min(b.ttl_max))
        .margin(a.margin.max(b.margin))
        .takeover(later(a.takeover, b.takeover))
        .detached(a.detached.min(b.detached))
        .minimum_hold(a.minimum_hold.min(b.minimum_hold))
        .late_attempts_refused(a.late_attempts_refused.min(b.late_attempts_refused))
        .min_token_supported(match fencing {
            Fencing::None => Support::Absent,
            _ => Support::Present,
        })
        .inspecting(a.inspecting.min(b.inspecting))
        .breaking(a.breaking.min(b.breaking))
}

fn later(a: Takeover, b: Takeover) -> Takeover {
    match (a, b) {
        (Takeover::LeasePlus(a), Takeover::LeasePlus(b)) => Takeover::LeasePlus(a.max(b)),
        (Takeover::AtOnce, other) | (other, Takeover::AtOnce) => other,
    }
}

/// Returns why a member that connected after the others contradicts the declared capabilities;
/// `None` if it does not.
pub(crate) fn mismatch(declared: &Capabilities, member: &Capabilities) -> Option<&'static str> {
    let together = weakest(*declared, quorum_of_one(*member));
    let longer = |a: Takeover, b: Takeover| later(a, b) != b;
    let differences = [
        (together.fencing < declared.fencing, "its fencing tokens are of a lower grade"),
        (together.durability < declared.durability, "its locks are less durable"),
        (together.reach < declared.reach, "it excludes fewer"),
        (together.ttl_min > declared.ttl_min, "its shortest lease is longer"),
        (together.ttl_max < declared.ttl_max, "its longest lease is shorter"),
        (together.margin > declared.margin, "its margin is larger"),
        (longer(together.takeover, declared.takeover), "it takes longer to be taken over"),
        (together.detached < declared.detached, "it has no detached holds"),
        (together.minimum_hold < declared.minimum_hold, "it keeps no minimum holds"),
        (
            together.late_attempts_refused < declared.late_attempts_refused,
            "it does not refuse late attempts",
        ),
        (together.inspecting < declared.inspecting, "it cannot be inspected"),
        (together.breaking < declared.breaking, "its locks cannot be broken"),
        (member.polling_share.is_some(), LEAVES_FREE),
    ];
    differences.into_iter().find_map(|(differs, how)| differs.then_some(how))
}

/// Caps the leases, so that no hold outlasts the time for which a restarted member is not counted.
/// The minimum hold that a member enforces after a release is no lease and may last longer. So the
/// members enforce none: the holder keeps renewing instead.
pub(crate) fn at_most(all: Capabilities, longest_lease: Option<Duration>) -> Capabilities {
    let Some(longest) = longest_lease else { return all };
    all.ttl_max(all.ttl_max.min(longest)).minimum_hold(Support::Absent)
}

#[cfg(test)]
mod tests {
    use lock_core::{Backend, Durability, Memory, Reach};

    use super::*;

    fn memory() -> Capabilities {
        Memory::new().capabilities()
    }

    #[test]
    fn the_weakest_member_decides() {
        let advisory = memory()
            .durability(Durability::Advisory)
            .reach(Reach::Network)
            .minimum_hold(Support::Absent)
            .margin(Duration::from_millis(2))
            .ttl_max(Duration::from_secs(60))
            .takeover(Takeover::LeasePlus(Duration::from_secs(3)));
        let all = of_all([&memory(), &advisory, &memory()]).unwrap();
        assert_eq!(all.durability, Durability::Advisory);
        assert_eq!(all.reach, Reach::Process);
        assert_eq!(all.minimum_hold, Support::Absent);
        assert_eq!(all.detached, Support::Present);
        assert_eq!(all.margin, Duration::from_millis(2));
        assert_eq!(all.ttl_max, Duration::from_secs(60));
        assert_eq!(all.takeover, Takeover::LeasePlus(Duration::from_secs(3)));
        assert_eq!((all.order, all.wakeup), (Order::PerProcess, Wakeup::Signal));
        assert_eq!((all.fencing, all.min_token_supported), (Fencing::Seeded, Support::Present));
    }

    #[test]
    fn members_that_forget_enforce_no_hold_for_longer_than_they_stay_out() {
        let longest = Duration::from_secs(60);
        let forgetful = at_most(of_all([&memory()]).unwrap(), Some(longest));
        assert_eq!((forgetful.ttl_max, forgetful.minimum_hold), (longest, Support::Absent));
        // A member that connects later is compared with that.
        assert_eq!(mismatch(&forgetful, &memory().ttl_max(longest)), None);
        let remembering = at_most(of_all([&memory()]).unwrap(), None);
        assert_eq!(remembering.minimum_hold, Support::Present);
    }

    #[test]
    fn one_member_that_cannot_be_raised_takes_the_tokens_away() {
        let rigid = memory().fencing(Fencing::Durable).min_token_supported(Support::Absent);
        for order in [[&memory(), &rigid, &memory()], [&rigid, &memory(), &memory()]] {
            let all = of_all(order).unwrap();
            assert_eq!((all.fencing, all.min_token_supported), (Fencing::None, Support::Absent));
        }
    }

    #[test]
    fn a_late_member_must_fit_in() {
        let declared = of_all([&memory(), &memory()]).unwrap();
        assert_eq!(mismatch(&declared, &memory()), None);
        let advisory = memory().durability(Durability::Advisory);
        assert_eq!(mismatch(&declared, &advisory), Some("its locks are less durable"));
        let rigid = memory().min_token_supported(Support::Absent);
        assert!(mismatch(&declared, &rigid).is_some());
        let shared = memory().polling_share(Some(Duration::from_millis(250)));
        assert_eq!(mismatch(&declared, &shared), Some(LEAVES_FREE));
        let polled = memory().wakeup(Wakeup::Poll);
        assert_eq!(mismatch(&declared, &polled), None);
    }
}
