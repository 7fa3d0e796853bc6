//! Checks of Sentinels, and of the primary that they name.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::FaultKind;
use lock_core::diagnosis::Finding;
use redis::Value as Answer;
use redis::aio::ConnectionLike;

use crate::clock::within;
use crate::config::Config;
use crate::connection::address::{Sentinels, ServerLocation};
use crate::connection::client_state::ClientState;
use crate::diagnose::primary;
use crate::diagnose::probe::{Probe, Seen, Unseen, unusable};
use crate::fault;
use crate::limits::CONNECT_TIMEOUT;
use crate::topology::servers::all;
use crate::topology::views::newest;

/// From then on, a lease of the usual 30 s may end before its primary is replaced: two thirds of it
/// are left at least.
const LATE: Duration = Duration::from_secs(18);

/// A sentinel's report.
struct Report {
    /// The primary that it names, or the finding that it does not answer.
    location: Result<ServerLocation, Finding>,
    /// Whether it answered that it knows no primary of that name.
    knows_none: bool,
    /// The answer to `SENTINEL MASTER`.
    state: HashMap<String, String>,
    /// The answer to `SENTINEL CKQUORUM`.
    quorum: Option<Seen<String>>,
    /// The answer to `SENTINEL REPLICAS`.
    replicas: Option<Seen<Vec<Replica>>>,
}

/// A replica, as a sentinel describes it.
type Replica = HashMap<String, String>;

/// Checks each sentinel, and then the primary.
pub(crate) async fn check(config: &Config, sentinels: &Sentinels) -> Vec<Finding> {
    let asking = (0..sentinels.hosts.len()).map(|number| ask(config, sentinels, number));
    let reports = all(asking).await;
    let mut findings = vec![sentinels_found(&reports), agreement(&reports)];
    for report in &reports {
        if let Err(finding) = &report.location {
            findings.push(finding.clone());
        }
    }
    findings.extend(quorum(&reports));
    findings.extend(failover(&reports));
    let client = Arc::new(ClientState::new(config));
    match Probe::open(config, &client, Some(config.keys.for_trial(0))).await {
        Ok(probe) => {
            let address = probe.connection.health.server.address.to_string();
            let of_it = primary::check(&probe).await;
            findings.extend(of_it.into_iter().map(|finding| finding.of_server(&*address)));
        }
        Err(fault) => findings.push(unusable(fault)),
    }
    findings
}

/// Asks one sentinel for all that it knows.
async fn ask(config: &Config, sentinels: &Sentinels, number: usize) -> Report {
    let address = sentinels.address_of(&sentinels.hosts[number]);
    let location = sentinels.ask(config, number).await;
    let knows_none = location.as_ref().is_err_and(|fault| fault.kind() == FaultKind::Invalid);
    let failed = |fault| as_warning(unusable(fault)).of_server(address.to_string());
    let location = location.map_err(failed);
    let (mut state, mut quorum, mut replicas) = (HashMap::new(), None, None);
    if location.is_ok() {
        let asking = async {
            let mut opened = sentinels.connect(config, &address).await.ok()?;
            let mut pipe = redis::pipe();
            pipe.cmd("SENTINEL").arg("MASTER").arg(&sentinels.service);
            pipe.cmd("SENTINEL").arg("CKQUORUM").arg(&sentinels.service);
            pipe.cmd("SENTINEL").arg("REPLICAS").arg(&sentinels.service);
            let answers = opened.redis.req_packed_commands(&pipe, 0, pipe.len()).await.ok()?;
            <[Answer; 3]>::try_from(answers).ok()
        };
        let silent = within(CONNECT_TIMEOUT, asking).await.flatten();
        if let Some([known, reachable, followers]) = silent {
            state = redis::from_redis_value(known).unwrap_or_default();
            quorum = Some(match reachable.extract_error() {
                Ok(answer) => Ok(redis::from_redis_value(answer).unwrap_or_default()),
                Err(error) if error.code() == Some("NOQUORUM") => Ok(fault::message(&error)),
                Err(error) => {
                    let right = "sentinel|ckquorum";
                    Err(Unseen::refused("SENTINEL CKQUORUM", right, &error))
                }
            });
            let followers = followers.extract_error();
            let followers = followers.and_then(|answer| Ok(redis::from_redis_value(answer)?));
            replicas = Some(followers.map_err(|error| {
                Unseen::refused("SENTINEL REPLICAS", "sentinel|replicas", &error)
            }));
        }
    }
    Report { location, knows_none, state, quorum, replicas }
}

impl Report {
    fn number(&self, name: &str) -> Option<u64> {
        self.state.get(name)?.parse().ok()
    }

    /// Returns why none of the replicas can take over, for each one, or nothing if one can.
    fn unfit(&self) -> Seen<Vec<Unfit>> {
        let replicas = match &self.replicas {
            Some(replicas) => replicas.as_ref().map_err(Clone::clone)?,
            None => return Ok(Vec::new()),
        };
        let down_after = self.number("down-after-milliseconds").unwrap_or(0);
        let unfit = replicas.iter().map(|replica| unfit(replica, down_after));
        Ok(unfit.collect::<Option<_>>().unwrap_or_default())
    }
}

fn sentinels_found(reports: &[Report]) -> Finding {
    let (named, there) = (reports.len(), reports.iter().filter(|it| it.location.is_ok()).count());
    let others = reports.iter().filter_map(|it| it.number("num-other-sentinels")).max();
    let known = others.map_or(0, |others| others.saturating_add(1));
    let text = format!("{there} of the {named} sentinels in the URL answer");
    let start = "start the others, or correct the URL";
    let unaware = reports.iter().filter(|it| it.knows_none).count();
    if unaware > there {
        let text = format!("{unaware} of the {named} sentinels know no primary of that name");
        let remedy = "correct the name in the URL: SENTINEL MASTERS has those that they know";
        return match there {
            0 => Finding::failure("sentinels", text),
            _ => Finding::warning("sentinels", text),
        }
        .remedy(remedy);
    }
    match there {
        0 => Finding::failure("sentinels", text).remedy(start),
        _ if there <= named / 2 => {
            let text = format!("{text}: fewer than most, so a failover may pass unnoticed");
            Finding::warning("sentinels", text).remedy(start)
        }
        _ if there < named => Finding::warning("sentinels", text).remedy(start),
        _ if named as u64 > known && known > 0 => {
            let text = format!("{text}, and they know only {known} of them");
            Finding::warning("sentinels", text).remedy("have all watch over the same primary")
        }
        _ if known > named as u64 => {
            let text = format!("{text}, and they know {known}");
            Finding::warning("sentinels", text).remedy("name all of them in the URL")
        }
        _ => Finding::ok("sentinels", text),
    }
}

fn agreement(reports: &[Report]) -> Finding {
    let named: Vec<_> = reports.iter().filter_map(|it| it.location.as_ref().ok()).collect();
    let Some(best) = newest(&named) else {
        return Finding::failure("primary", "no sentinel names a primary")
            .remedy("check the name in the URL, and SENTINEL MASTERS");
    };
    let agreeing = named.iter().filter(|it| it.address == best.address).count();
    let text = format!("{agreeing} of {} sentinels name {}", named.len(), best.address);
    match agreeing == named.len() {
        true => Finding::ok("primary", text),
        false => Finding::warning("primary", format!("{text}, and the others another server"))
            .remedy("wait until the failover is over, or SENTINEL RESET the others"),
    }
}

/// Returns the finding of the sentinels with the worst view of the quorum.
fn quorum(reports: &[Report]) -> Option<Finding> {
    let views: Vec<_> = reports.iter().filter_map(|it| it.quorum.as_ref()).collect();
    let lost = views.iter().find_map(|view| view.as_ref().ok().filter(|it| !it.starts_with("OK")));
    if let Some(lost) = lost {
        let text = format!("no failover is possible now: {lost}");
        return Some(Finding::warning("quorum", text).remedy("start more sentinels"));
    }
    if let Some(unseen) = views.iter().find_map(|view| view.as_ref().err()) {
        return Some(unseen.clone().finding("quorum"));
    }
    let size = reports.iter().find_map(|it| it.number("quorum"));
    let text = match size {
        Some(size) => format!("enough sentinels for a failover, on which {size} have to agree"),
        None => "enough sentinels for a failover".to_owned(),
    };
    (!views.is_empty()).then(|| Finding::ok("quorum", text))
}

/// Returns the finding about the time until a failover, and the servers for it.
fn failover(reports: &[Report]) -> Option<Finding> {
    let down_after = reports.iter().filter_map(|it| it.number("down-after-milliseconds")).max()?;
    let down_after = Duration::from_millis(down_after);
    let replicas = reports.iter().filter_map(|it| it.number("num-slaves")).max().unwrap_or(0);
    let text = format!(
        "replicas known: {replicas}; a primary counts as down after {down_after:?}, and one that \
         restarts sooner stays the primary, with the locks that its disk has"
    );
    let unfit: Seen<Vec<_>> = reports.iter().map(Report::unfit).collect();
    let unfit = match unfit {
        // The worst view: any sentinel may lead the failover.
        Ok(views) => views.into_iter().find(|unfit| !unfit.is_empty()),
        Err(unseen) => return Some(unseen.finding("failover")),
    };
    if let Some(unfit) = unfit {
        let whys: Vec<_> = unfit.iter().map(|it| it.why.as_str()).collect();
        let mut remedies: Vec<_> = unfit.iter().map(|it| it.remedy).collect();
        remedies.sort_unstable();
        remedies.dedup();
        let text = format!("{text}; none can take over: {}", whys.join(", "));
        return Some(Finding::warning("failover", text).remedy(remedies.join("; ")));
    }
    Some(match (replicas, down_after > LATE) {
        (0, _) => Finding::warning("failover", format!("{text}; none can take over"))
            .remedy("add a replica"),
        (_, true) => Finding::warning("failover", format!("{text}; leases of 30 s end before"))
            .remedy("lower down-after-milliseconds to a few seconds"),
        (_, false) => Finding::ok("failover", text),
    })
}

/// A replica that cannot take over.
struct Unfit {
    why: String,
    remedy: &'static str,
}

/// Returns why a sentinel would not choose this replica, by its own rules.
fn unfit(replica: &Replica, down_after: u64) -> Option<Unfit> {
    let field = |name| replica.get(name).map_or("", String::as_str);
    let flags: Vec<_> = field("flags").split(',').collect();
    // Negative while it has never been connected.
    let cut_off: i64 = field("master-link-down-time").parse().unwrap_or(0);
    let longest = i64::try_from(down_after.saturating_mul(10)).unwrap_or(i64::MAX);
    let (what, remedy) = if flags.contains(&"s_down") || flags.contains(&"o_down") {
        ("is down", "start the replica")
    } else if flags.contains(&"disconnected") {
        ("does not answer the sentinels", "look at the network between sentinels and the replica")
    } else if field("slave-priority") == "0" {
        ("never does, as its replica-priority is 0", "set replica-priority to 100 on a replica")
    } else if cut_off > longest {
        ("has lost its primary for too long", "look at the replica's log")
    } else {
        return None;
    };
    let why = format!("{}:{} {what}", field("ip"), field("port"));
    Some(Unfit { why, remedy })
}

/// Returns the finding as a warning: the other sentinels do.
fn as_warning(finding: Finding) -> Finding {
    let warning = Finding::warning(finding.check, finding.text);
    match finding.remedy {
        Some(remedy) => warning.remedy(remedy),
        None => warning,
    }
}
