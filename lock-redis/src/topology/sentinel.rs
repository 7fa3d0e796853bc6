//! Redis Sentinel: which of several servers has the locks now, and notifications of a change.
//!
//! Sentinels count the configurations of a primary by epochs. One that was cut off names an old
//! primary until it hears of the newest. So the client asks a majority and believes the highest
//! epoch, also among the last notifications. A sentinel that lost its state counts from the
//! beginning, and its last report counts as it is. The reports of lost sentinels count until more
//! than half of all sentinels are there.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::backend::Fault;
use lock_core::backend::FaultKind::{Denied, Invalid, Unavailable, Unsupported};
use lock_core::clock::sleep_between;
use lock_core::url::Host;
use redis::aio::{AsyncPushSender, ConnectionLike, MultiplexedConnection, SendError};
use redis::{
    AsyncConnectionConfig, PushInfo, PushKind, RedisError, Value as Answer, from_redis_value,
};
use tokio::sync::{Notify, SetOnce};
use tokio::task::JoinSet;

use crate::clock::within;
use crate::config::Config;
use crate::connection::address::{Address, Endpoint, Sentinels, ServerLocation};
use crate::connection::clients::{Opened, Opener};
use crate::fault::{self, unexpected_answer};
use crate::topology::views::{SentinelViews, ViewObserver};

/// The limit for a sentinel's answer, with the connection for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The limit for the rest after a majority has answered: a sentinel that counts anew withdraws its
/// earlier report.
const LATE_ANSWER_WAIT: Duration = Duration::from_millis(100);

/// The pause before a listener connects to a lost sentinel again.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);

/// The channels on which sentinels announce that a primary was replaced, or configured by hand.
const CHANNELS: [&str; 2] = ["+switch-master", "+monitor"];

/// The longest pause before a listener asks again without an announcement: a sentinel that lost its
/// state, hangs, or was told to forget the primary announces nothing.
const REQUERY_INTERVAL: Duration = Duration::from_secs(10);

impl Sentinels {
    /// Asks all sentinels at once, until more than half of them have answered and the others have
    /// had a moment. Returns the report of each one; at least one.
    pub(crate) async fn find(
        &self,
        config: &Config,
    ) -> Result<Vec<(usize, ServerLocation)>, Fault> {
        let mut asked = JoinSet::new();
        for number in 0..self.hosts.len() {
            let (sentinels, config) = (self.clone(), config.clone());
            asked.spawn(async move { Ok((number, sentinels.ask(&config, number).await?)) });
        }
        let majority = self.hosts.len() / 2 + 1;
        let (mut answers, mut faults) = (Vec::new(), Vec::new());
        loop {
            let limit =
                if answers.len() < majority { ANSWER_TIMEOUT * 2 } else { LATE_ANSWER_WAIT };
            let Some(Some(answer)) = within(limit, asked.join_next()).await else { break };
            match answer {
                Ok(Ok(found)) => answers.push(found),
                Ok(Err(fault)) => faults.push(fault),
                // The runtime ends.
                Err(_) => {}
            }
        }
        // The sentinels that deny access may know better than the few that answer.
        let denied = faults.iter().filter(|fault: &&Fault| fault.kind() == Denied).count();
        match answers.is_empty() || denied >= majority {
            true => Err(self.no_primary(faults)),
            false => Ok(answers),
        }
    }

    /// Returns the views before any sentinel has reported.
    pub(crate) fn views(&self) -> SentinelViews {
        SentinelViews::of(self.hosts.len())
    }

    /// Listens to each sentinel, in tasks of its own, and passes reports to the link.
    pub(crate) fn listen<O: ViewObserver>(
        &self,
        config: &Arc<Config>,
        link: &Weak<O>,
        tasks: &mut JoinSet<()>,
    ) {
        for number in 0..self.hosts.len() {
            let sentinels = self.clone();
            let (config, link) = (Arc::clone(config), Weak::clone(link));
            tasks.spawn(async move {
                // Also if its runtime ends: then a failover would pass unnoticed.
                let _listener = ListenerGuard { number, link: Weak::clone(&link) };
                loop {
                    if let Err(error) = sentinels.listen_to(&config, number, &link).await {
                        let error = error.into_source();
                        let host = &sentinels.hosts[number];
                        tracing::debug!(sentinel.address = %host, %error, "cannot listen");
                    }
                    let Some(link) = link.upgrade() else { return };
                    link.disconnected(number);
                    drop(link);
                    sleep_between(RECONNECT_PAUSE / 2, RECONNECT_PAUSE).await;
                }
            });
        }
    }

    pub(crate) async fn ask(
        &self,
        config: &Config,
        number: usize,
    ) -> Result<ServerLocation, Fault> {
        let address = self.address_of(&self.hosts[number]);
        let asking = async {
            let opened = self.connect(config, &address).await?;
            self.ask_on(&opened.redis, &address).await
        };
        let silent = || Err(fault::no_handshake(&Endpoint::Fixed(address.clone())));
        within(ANSWER_TIMEOUT, asking).await.unwrap_or_else(silent)
    }

    /// Connects to the sentinel at `address`, for questions only.
    pub(crate) async fn connect(
        &self,
        config: &Config,
        address: &Address,
    ) -> Result<Opened, Fault> {
        let opener = opener(self, config, address).await?;
        let opened = opener.without_pushes(&settings()).await;
        opened.map_err(|error| fault::no_connection(address, &error))
    }

    /// Asks two questions, because the old address answers the second one until a failover is
    /// complete. A change between the two makes the new address look old, and never the old one
    /// new; so the epoch is asked for first.
    async fn ask_on(
        &self,
        redis: &MultiplexedConnection,
        address: &Address,
    ) -> Result<ServerLocation, Fault> {
        let mut pipe = redis::pipe();
        pipe.cmd("SENTINEL").arg("MASTER").arg(&self.service);
        pipe.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        let answers = redis.clone().req_packed_commands(&pipe, 0, pipe.len()).await;
        self.location(address, answers.map_err(|error| refusal(address, &error))?)
    }

    /// Reads the answers of the sentinel at `address` to both questions.
    pub(crate) fn location(
        &self,
        address: &Address,
        answers: Vec<Answer>,
    ) -> Result<ServerLocation, Fault> {
        let refusal = |error: RedisError| refusal(address, &error);
        let [known, named] = <[Answer; 2]>::try_from(answers)
            .map_err(|_| unexpected_answer("ask a sentinel", "another number of answers"))?;
        let known = match known.extract_error().map_err(refusal) {
            // Without that right, any of them could override the others.
            Err(fault) if fault.kind() == Denied => return Err(fault),
            known => known.ok().and_then(|known| from_redis_value(known).ok()),
        };
        let known: Option<HashMap<String, String>> = known;
        let named = named.extract_error().and_then(|named| Ok(from_redis_value(named)?));
        let named: Option<(String, u16)> = named.map_err(refusal)?;
        let Some((name, port)) = named.filter(|(name, port)| !name.is_empty() && *port != 0) else {
            let why =
                format!("the sentinel at {address} knows no primary called {:?}", self.service);
            return Err(Fault::not_applied(Invalid, why));
        };
        // Services that only speak like sentinels do not count: they are believed if more than half
        // of them agree.
        let epoch = known.and_then(|known| known.get("config-epoch")?.parse().ok());
        let address = Address::Tcp { host: Host { name, port }, tls: self.tls };
        Ok(ServerLocation { address, epoch: Some(epoch.unwrap_or(0)) })
    }

    /// Listens until the connection fails.
    async fn listen_to<O: ViewObserver>(
        &self,
        config: &Config,
        number: usize,
        link: &Weak<O>,
    ) -> Result<(), Fault> {
        let address = self.address_of(&self.hosts[number]);
        let events = Arc::new(ListenerEvents::default());
        let connecting = async {
            let opener = opener(self, config, &address).await?;
            let pushes =
                SentinelPushes { service: self.service.clone(), events: Arc::clone(&events) };
            let settings = settings().set_push_sender(pushes);
            let failed = |error: RedisError| fault::no_connection(&address, &error);
            let mut opened = opener.with_pushes(&settings).await.map_err(failed)?;
            let subscribing = opened.redis.subscribe(&CHANNELS).await;
            subscribing.map_err(|error| refusal(&address, &error))?;
            Ok(opened)
        };
        let Opened { redis, driver: _driver } = in_time(&address, connecting).await?;
        loop {
            // An announcement before the subscription is covered by the question.
            let found = in_time(&address, self.ask_on(&redis, &address)).await?;
            match link.upgrade() {
                Some(link) => link.reported(number, found),
                None => return Ok(()),
            }
            tokio::select! {
                () = events.changed.notified() => {}
                () = sleep_between(REQUERY_INTERVAL / 2, REQUERY_INTERVAL) => {}
                _ = events.end.wait() => return Ok(()),
            }
        }
    }

    pub(crate) fn address_of(&self, host: &Host) -> Address {
        Address::Tcp { host: host.clone(), tls: self.tls }
    }

    /// Returns the combined fault. Causes that an operator has to correct come before transient
    /// ones.
    fn no_primary(&self, faults: Vec<Fault>) -> Fault {
        let kinds = [Denied, Unsupported, Invalid];
        let is_there = |kind| faults.iter().any(|fault| fault.kind() == kind);
        let kind = kinds.into_iter().find(|kind| is_there(*kind)).unwrap_or(Unavailable);
        let whys: Vec<_> =
            faults.into_iter().map(|fault| fault.into_source().to_string()).collect();
        let why =
            format!("no sentinel names the primary of {:?}: {}", self.service, whys.join("; "));
        Fault::not_applied(kind, why)
    }
}

/// The listener of one sentinel; its end is reported on drop.
pub(crate) struct ListenerGuard<O: ViewObserver> {
    pub(crate) number: usize,
    pub(crate) link: Weak<O>,
}

impl<O: ViewObserver> Drop for ListenerGuard<O> {
    fn drop(&mut self) {
        if let Some(link) = self.link.upgrade() {
            link.listener_ended(self.number);
        }
    }
}

async fn in_time<T>(
    address: &Address,
    work: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    within(ANSWER_TIMEOUT, work)
        .await
        .unwrap_or_else(|| Err(fault::unanswered(&address.to_string())))
}

pub(crate) fn settings() -> AsyncConnectionConfig {
    // The caller bounds the whole request.
    AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None)
}

async fn opener(
    sentinels: &Sentinels,
    config: &Config,
    address: &Address,
) -> Result<Opener, Fault> {
    let opener = config.opener(address, &sentinels.login, 0);
    opener.await.map_err(|error| Fault::not_applied(Unavailable, error))
}

/// Returns the fault of a sentinel that does not answer the question.
pub(crate) fn refusal(address: &Address, error: &RedisError) -> Fault {
    let fault = fault::fault("ask a sentinel", error);
    let (kind, source) = (fault.kind(), fault.into_source());
    let hint = match kind {
        Unsupported => "no sentinel listens at",
        Denied => {
            "name its user by the URL options sentinel_user and sentinel_password, with the rights \
             +sentinel|get-master-addr-by-name, +sentinel|master, +subscribe, and &* for channels, at"
        }
        // One that is not encrypted ends with the first word.
        _ if error.is_connection_dropped() && !address.is_encrypted() => {
            "if it expects encrypted connections, use rediss+sentinel://; look at"
        }
        _ => "look at",
    };
    Fault::not_applied(kind, format!("{source}; {hint} {address}"))
}

#[derive(Default)]
pub(crate) struct ListenerEvents {
    pub(crate) changed: Notify,
    pub(crate) end: SetOnce<()>,
}

/// The receiver of a sentinel's announcements. It runs inside the connection's task.
pub(crate) struct SentinelPushes {
    pub(crate) service: String,
    pub(crate) events: Arc<ListenerEvents>,
}

impl AsyncPushSender for SentinelPushes {
    fn send(&self, push: PushInfo) -> Result<(), SendError> {
        // After the channel, `<service> <old host> <old port> …`, or `master <service> <host>
        // <port> …`.
        if push.kind == PushKind::Message
            && let Some(Answer::BulkString(text)) = push.data.get(1)
            && text.split(|byte| *byte == b' ').take(2).any(|word| word == self.service.as_bytes())
        {
            self.events.changed.notify_one();
        }
        Ok(())
    }
}

impl Drop for SentinelPushes {
    fn drop(&mut self) {
        // It is set nowhere else.
        let _ = self.events.end.set(());
    }
}

#[cfg(test)]
mod tests {
    use lock_conformance::helpers::eventually;
    use lock_conformance::proxy::{Match, Proxy};
    use test_servers::{RedisOptions, SentinelGroup};

    use super::*;
    use crate::topology::views::{SentinelViews, VIEW_RETENTION, newest};

    fn found(port: u16, epoch: u64) -> ServerLocation {
        let host = Host { name: "127.0.0.1".to_owned(), port };
        ServerLocation { address: Address::Tcp { host, tls: false }, epoch: Some(epoch) }
    }

    #[test]
    fn a_partitioned_sentinel_does_not_override_the_others() {
        let mut views = SentinelViews::of(3);
        assert_eq!(views.best(), None);
        (0..3).for_each(|sentinel| views.report(sentinel, found(1, 3)));
        assert!(!views.have_moved_from(&found(1, 3)) && views.have_moved_from(&found(9, 3)));
        // One of them is the first to tell of a failover.
        views.report(1, found(2, 5));
        assert_eq!(views.best(), Some(&found(2, 5)));
        assert!(views.have_moved_from(&found(1, 3)) && !views.have_moved_from(&found(2, 5)));
        // The sentinels that know are lost, and one that lags is there.
        views.disconnect(1);
        views.report(1, found(2, 5));
        views.report(2, found(2, 5));
        (1..3).for_each(|sentinel| views.disconnect(sentinel));
        views.report(0, found(1, 3));
        assert_eq!(views.best(), Some(&found(2, 5)));
        assert!(!views.have_moved_from(&found(2, 5)) && views.have_moved_from(&found(1, 3)));
    }

    #[test]
    fn an_answer_does_not_override_a_later_report() {
        let mut views = SentinelViews::of(3);
        views.report(0, found(1, 3));
        let before = views.reports();
        views.report(0, found(2, 5));
        views.answered(&[(0, found(1, 3)), (1, found(1, 3))], &before);
        assert_eq!(views.best(), Some(&found(2, 5)));
        views.answered(&[(0, found(1, 0)), (1, found(1, 0))], &views.reports());
        assert_eq!(views.best(), Some(&found(1, 0)), "two of three have said so now");
    }

    #[test]
    fn sentinels_that_count_anew_are_believed() {
        let mut views = SentinelViews::of(3);
        (0..3).for_each(|sentinel| views.report(sentinel, found(2, 5)));
        // They lost their state, and were told of another primary.
        views.report(0, found(1, 0));
        assert!(!views.have_moved_from(&found(2, 5)), "the others have not said so");
        views.report(2, found(1, 0));
        assert!(!views.have_moved_from(&found(2, 5)), "one of them is heard and says otherwise");
        views.disconnect(1);
        assert!(views.have_moved_from(&found(2, 5)), "it is gone, and the rest is more than half");
        assert_eq!(views.best(), Some(&found(1, 0)));
    }

    #[tokio::test(start_paused = true)]
    async fn views_of_lost_sentinels_are_forgotten_after_a_minute() {
        let mut views = SentinelViews::of(3);
        (0..3).for_each(|sentinel| views.report(sentinel, found(2, 5)));
        (1..3).for_each(|sentinel| views.disconnect(sentinel));
        views.report(0, found(1, 0));
        assert_eq!(views.best(), Some(&found(2, 5)));
        tokio::time::advance(VIEW_RETENTION / 2).await;
        (1..3).for_each(|sentinel| views.disconnect(sentinel));
        assert_eq!(views.best(), Some(&found(2, 5)));
        tokio::time::advance(VIEW_RETENTION / 2 + Duration::from_millis(1)).await;
        assert_eq!(views.best(), Some(&found(1, 0)), "they were lost again and again, since then");
    }

    #[test]
    fn sentinels_without_epochs_need_a_majority() {
        let mut views = SentinelViews::of(3);
        (0..3).for_each(|sentinel| views.report(sentinel, found(1, 0)));
        views.report(1, found(2, 0));
        assert!(!views.have_moved_from(&found(1, 0)));
        views.report(0, found(2, 0));
        assert!(views.have_moved_from(&found(1, 0)));
        let [one, other] = [found(2, 0), found(1, 0)];
        assert_eq!(newest(&[&one, &other, &one]), Some(&one));
        assert_eq!(newest(&[&other, &one, &one]), Some(&one));
    }

    /// Tells the first Sentinel, in the name of another one, that this server is the primary now.
    async fn hears_of(group: &SentinelGroup, server: usize, epoch: u64) {
        let (teller, hearer) = (group.sentinel(1), group.sentinel(0));
        let (id, from) = (teller.command(&["SENTINEL", "MYID"]).text(), teller.addr().port());
        let (service, port) = (group.service(), group.server(server).addr().port());
        let message =
            format!("127.0.0.1,{from},{},{epoch},{service},127.0.0.1,{port},{epoch}", id.trim());
        eventually(|| {
            // Where Sentinels tell each other.
            for number in [0, 1] {
                group.server(number).command(&["PUBLISH", "__sentinel__:hello", &message]);
            }
            hearer.named() == Some(port)
        })
        .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_failover_between_two_questions_makes_no_old_address_new() {
        let group = tokio::task::spawn_blocking(|| SentinelGroup::start(RedisOptions::new()));
        let group = group.await.unwrap();
        let proxy = Proxy::start(group.sentinel(0).addr()).unwrap();
        let url = format!("redis+sentinel://{}/{}", proxy.addr(), group.service());
        let config = Config::new(&url).unwrap();
        let Endpoint::Sentinel(sentinels) = config.endpoint.clone() else {
            panic!("it names sentinels")
        };
        let address = sentinels.address_of(&sentinels.hosts[0]);
        let opener = opener(&sentinels, &config, &address).await.unwrap();
        let Opened { redis, .. } = opener.without_pushes(&settings()).await.unwrap();
        for (server, epoch) in [(1, 100), (0, 200)] {
            let answered = proxy.stats().to_client.received;
            // The second question: nothing else that is sent has that word.
            let mut held = proxy.hold(Match::on("SENTINEL").nth(2));
            let asking = tokio::spawn({
                let (sentinels, redis, address) =
                    (sentinels.clone(), redis.clone(), address.clone());
                async move { sentinels.ask_on(&redis, &address).await }
            });
            held.caught().await.unwrap();
            proxy.until(|stats| stats.to_client.received > answered).await;
            hears_of(&group, server, epoch).await;
            held.deliver().await.unwrap();
            let found = asking.await.unwrap().unwrap();
            let port = group.server(server).addr().port();
            let is_new = matches!(&found.address, Address::Tcp { host, .. } if host.port == port);
            assert!(
                is_new || found.epoch < Some(epoch),
                "{found:?}, and the news were of {epoch} and {port}"
            );
        }
    }
}
