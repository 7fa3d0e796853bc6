//! Checks of a quorum and its members, for `lockctl doctor`.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::Fault;
use lock_core::clock::Moment;
use lock_core::diagnosis::{Finding, Severity};
use lock_core::{Error, Executor};
use tokio::task::JoinSet;

use crate::config::{QuorumBuilder, common_capabilities, connect_all};
use crate::member::Member;
use crate::server::{Server, not_counted_for};

const INDEPENDENCE: &str = "independence";

/// The check of a member's own backend for the data that survive a restart.
const PERSISTENCE: &str = "persistence";

impl QuorumBuilder {
    /// Returns the findings about the members and about the quorum that they make. `checks` are
    /// those of the members' own backends, in the order of the members.
    ///
    /// A failure of a member is a warning while the other members are a majority. That two of them
    /// are one server stays a failure.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the checks.
    pub async fn diagnose<C>(self, checks: impl IntoIterator<Item = C>) -> Vec<Finding>
    where
        C: Future<Output = Vec<Finding>> + Send + 'static,
    {
        let checks: Vec<_> = checks.into_iter().collect();
        let diagnosis = async |executor: Executor| {
            executor.within(async { Ok::<_, Error>(self.examine(checks).await) }).await
        };
        match Executor::current_or_new() {
            Ok(executor) => Box::pin(diagnosis(executor)).await,
            Err(error) => Err(error),
        }
        .unwrap_or_else(|error| vec![Finding::failure("members", format!("{error:#}"))])
    }

    async fn examine<C>(self, checks: Vec<C>) -> Vec<Finding>
    where
        C: Future<Output = Vec<Finding>> + Send + 'static,
    {
        let (settings, names, timeout) = (self.settings, self.names(), self.connect_timeout());
        // Ended with this future. One that panics leaves its place empty.
        let mut checking = JoinSet::new();
        for (place, check) in checks.into_iter().enumerate() {
            checking.spawn(async move { (place, check.await) });
        }
        let mut members = Vec::new();
        for (member, error) in connect_all(self.members, timeout).await {
            members.push(Examined::connected(member, error, timeout).await);
        }
        let mut checked = HashMap::new();
        while let Some(check) = checking.join_next().await {
            checked.extend(check.ok());
        }
        for (place, member) in members.iter_mut().enumerate() {
            member.own = checked.remove(&place).unwrap_or_else(|| {
                vec![Finding::failure("connection", "the checks panicked; please report it")]
            });
        }
        for place in 0..members.len() {
            let (before, rest) = members.split_at_mut(place);
            rest[0].compare(before);
            rest[0].measure_age(settings.longest_lease);
        }
        let declared: Vec<_> = members
            .iter()
            .filter_map(|examined| Some(examined.member.current()?.capabilities()))
            .collect();
        let has_lease = declared.is_empty() || common_capabilities(&declared, &settings).is_some();

        let mut findings = vec![size_finding(names.len())];
        if !has_lease {
            let why = "the members have no lease in common";
            let remedy = "raise the URL option max_ttl, or use members of one kind";
            findings.push(Finding::failure("lease", why).remedy(remedy));
        }
        let majority = majority_finding(&members);
        let is_there = majority.severity == Severity::Ok;
        findings.push(majority);
        for examined in members {
            findings.extend(examined.findings(is_there, settings.longest_lease.is_some()));
        }
        findings
    }
}

/// A member, and the reasons why it may not count.
struct Examined {
    member: Member,
    server: Option<Arc<Server>>,
    /// The findings of its own backend.
    own: Vec<Finding>,
    /// The findings about it as a member.
    here: Vec<Finding>,
    /// How long it is not counted yet.
    not_counted_for: Duration,
}

impl Examined {
    /// Identifies the server of a member, if it could be connected.
    async fn connected(member: Member, error: Option<Error>, timeout: Duration) -> Self {
        let (server, why) = match (member.current(), error) {
            (_, Some(error)) => (None, Some(format!("{error:#}"))),
            (None, None) => (None, Some("it is not connected".to_owned())),
            (Some(backend), None) => {
                match tokio::time::timeout(timeout, member.server(&*backend)).await {
                    Ok(Ok(server)) => (Some(server), None),
                    Ok(Err(fault)) => (None, Some(cause(fault))),
                    Err(_) => (None, Some(format!("no answer within {timeout:?}"))),
                }
            }
        };
        let unreachable = why.map(|why| {
            Finding::failure("connection", why).remedy("start the server, or mend the way to it")
        });
        let here = unreachable.into_iter().collect();
        Self { member, server, own: Vec::new(), here, not_counted_for: Duration::ZERO }
    }

    /// Compares its server with those of the members before.
    fn compare(&mut self, before: &[Self]) {
        let Some(server) = &self.server else { return };
        for other in before {
            let Some(twin) = other.server.as_ref().filter(|other| server.may_be(other)) else {
                continue;
            };
            let name = &other.member.name;
            let finding = match server.is_identified() && twin.is_identified() {
                true => Finding::failure(INDEPENDENCE, format!("it is the same server as {name}"))
                    .remedy("name another server: one server has one vote"),
                false => {
                    let why = format!("it cannot be told from the server of {name}");
                    let remedy = "use at most one member of a kind that has no identity";
                    Finding::failure(INDEPENDENCE, why).remedy(remedy)
                }
            };
            self.here.push(finding);
            return;
        }
    }

    /// Finds whether the server has run for long enough to be counted.
    fn measure_age(&mut self, longest_lease: Option<Duration>) {
        let Some(server) = &self.server else { return };
        let Some(longest) = longest_lease else {
            let text = "restarts=remember: it is trusted to keep its locks over a restart";
            let remedy = "set it only where the server writes each lock to its disk first";
            return self.here.push(Finding::warning("restart", text).remedy(remedy));
        };
        let Some(up_for) = server.up_for_at(Moment::now()) else {
            let why = "it does not report how long it has been running, and is always counted";
            return self.here.push(Finding::unseen("restart", why));
        };
        self.not_counted_for = not_counted_for(longest, up_for);
        self.here.push(match self.not_counted_for.is_zero() {
            true => {
                let text = format!("it has been running for {}, and is counted", seconds(up_for));
                Finding::ok("restart", text)
            }
            false => {
                let text = format!(
                    "it was started {} ago and may have forgotten locks: it is counted in {}",
                    seconds(up_for),
                    seconds(self.not_counted_for)
                );
                Finding::warning("restart", text)
                    .remedy("wait, or set a shorter URL option max_ttl")
            }
        });
    }

    /// Returns true if nothing but its age keeps it from voting.
    fn can_vote(&self) -> bool {
        self.own.iter().chain(&self.here).all(|finding| finding.severity < Severity::Failure)
    }

    /// Returns its findings. While the others are a majority, its failures are warnings. A member
    /// that may forget its locks need not keep them.
    fn findings(self, majority_is_there: bool, may_forget: bool) -> impl Iterator<Item = Finding> {
        let Self { mut own, mut here, member, .. } = self;
        own.retain(|finding| !may_forget || finding.check != PERSISTENCE);
        // Its own backend knows better why it cannot be connected.
        if own.iter().any(|finding| finding.severity == Severity::Failure) {
            here.retain(|finding| finding.check != "connection");
        }
        own.into_iter().chain(here).map(move |mut finding| {
            let server = match &finding.server {
                Some(server) => format!("{}, {server}", member.name),
                None => member.name.clone(),
            };
            // The quorum cannot be built with one server twice.
            let may_be_away = finding.check != INDEPENDENCE;
            if majority_is_there && may_be_away && finding.severity == Severity::Failure {
                finding.severity = Severity::Warning;
            }
            finding.of_server(server)
        })
    }
}

fn size_finding(size: usize) -> Finding {
    let survives = size.saturating_sub(1) / 2;
    match size {
        0 => Finding::failure("members", "the quorum has no members")
            .remedy("write quorum:?member=URL&member=URL&member=URL"),
        1 => Finding::warning("members", "1 member: its failure ends all locks")
            .remedy("name three members on three hosts"),
        _ if size.is_multiple_of(2) => {
            let text = format!("{size} members: an even number is refused");
            Finding::failure("members", text).remedy(
                "add or remove one: the last one of an even number tolerates no more failures",
            )
        }
        _ => Finding::ok("members", format!("{size} members: {survives} of them may fail")),
    }
}

/// Returns whether a majority can vote now.
fn majority_finding(members: &[Examined]) -> Finding {
    let (size, majority) = (members.len(), members.len() / 2 + 1);
    let mut voters: Vec<_> = members
        .iter()
        .filter(|examined| examined.can_vote())
        .map(|examined| examined.not_counted_for)
        .collect();
    voters.sort_unstable();
    let now = voters.iter().filter(|not_counted_for| not_counted_for.is_zero()).count();
    let text = format!("{now} of {size} members count, and {majority} are needed");
    match voters.get(majority - 1) {
        Some(wait) if wait.is_zero() => Finding::ok("majority", text),
        Some(wait) => Finding::failure("majority", format!("{text}: no lock can be acquired yet"))
            .remedy(format!("wait for {}", seconds(*wait))),
        None => Finding::failure("majority", format!("{text}: no lock can be acquired"))
            .remedy("mend the members below"),
    }
}

/// Returns a duration in seconds, rounded up.
fn seconds(span: Duration) -> String {
    format!("{} s", span.as_millis().div_ceil(1000))
}

fn cause(fault: Fault) -> String {
    fault.into_source().to_string()
}

#[cfg(test)]
mod tests {
    use lock_core::Memory;

    use crate::Quorum;

    use super::*;

    /// Returns the findings of a quorum of three whose members have these findings.
    async fn findings_of(builder: QuorumBuilder, own: [Finding; 3]) -> Vec<Finding> {
        let members = (0..3).map(|_| Memory::new());
        let builder = members.fold(builder, QuorumBuilder::member);
        builder.diagnose(own.map(|finding| async { vec![finding] })).await
    }

    fn severities(findings: &[Finding], check: &str) -> Vec<Severity> {
        let found = findings.iter().filter(|finding| finding.check == check);
        found.map(|finding| finding.severity).collect()
    }

    #[tokio::test]
    async fn persistence_matters_where_members_remember() {
        let own = || [(); 3].map(|()| Finding::warning("persistence", "none"));
        let forget = findings_of(Quorum::builder(), own()).await;
        assert_eq!(severities(&forget, "persistence"), []);
        let remember = findings_of(Quorum::builder().members_remember(), own()).await;
        assert_eq!(severities(&remember, "persistence"), [Severity::Warning; 3]);
    }

    /// Also within an executor that goes on.
    #[tokio::test]
    async fn a_dropped_diagnosis_ends_its_checks() {
        let members = (0..3).map(|_| Memory::new());
        let builder = members.fold(Quorum::builder(), QuorumBuilder::member);
        let (begun, mut checks) = tokio::sync::mpsc::channel::<()>(3);
        let check = || {
            let begun = begun.clone();
            async move {
                begun.send(()).await.expect("the test waits");
                std::future::pending().await
            }
        };
        let executor = Executor::current_or_new().unwrap();
        let (around, checking) = (executor.clone(), [check(), check(), check()]);
        drop(begun);
        let diagnosis = tokio::spawn(async move {
            around.within(async { Ok::<_, Error>(builder.diagnose(checking).await) }).await
        });
        for _ in 0..3 {
            checks.recv().await.expect("a check begins");
        }
        diagnosis.abort();
        let ended = tokio::time::timeout(Duration::from_secs(20), checks.recv());
        assert_eq!(ended.await, Ok(None), "all checks are dropped");
    }

    #[tokio::test]
    async fn failures_of_a_minority_are_warnings() {
        let (ok, failure) = (|| Finding::ok("role", "a"), || Finding::failure("role", "b"));
        let builder = || Quorum::builder().members_remember();
        let one = findings_of(builder(), [failure(), ok(), ok()]).await;
        let minority = [Severity::Warning, Severity::Ok, Severity::Ok];
        assert_eq!(severities(&one, "role"), minority);
        assert_eq!(severities(&one, "majority"), [Severity::Ok]);
        let two = findings_of(builder(), [failure(), ok(), failure()]).await;
        assert_eq!(severities(&two, "role"), [Severity::Failure, Severity::Ok, Severity::Failure]);
        assert_eq!(severities(&two, "majority"), [Severity::Failure]);
        let server = two.iter().find(|finding| finding.check == "role").unwrap().server.as_deref();
        assert_eq!(server, Some("member 1 (memory)"));
    }
}
