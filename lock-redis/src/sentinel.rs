//! Redis Sentinel: which of several servers has the locks now, and hearing when it is another one.
//!
//! Sentinels count the configurations of a primary, by epochs, and one that was cut off names an old one for
//! as long as it has not heard of the newest. So a majority is asked and the highest epoch believed, also of what each
//! of them told last by itself. A sentinel that lost its state counts anew, and its last word counts as it is; of
//! those that are gone it counts until more than half of them are there.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::backend::Fault;
use lock_core::backend::FaultKind::{Denied, Invalid, Unavailable, Unsupported};
use lock_core::clock::{Moment, sleep_between};
use lock_core::url::Host;
use redis::aio::{AsyncPushSender, ConnectionLike, MultiplexedConnection, SendError};
use redis::{
    AsyncConnectionConfig, PushInfo, PushKind, RedisError, Value as Answer, from_redis_value,
};
use tokio::sync::{Notify, SetOnce};
use tokio::task::JoinSet;

use crate::address::{Address, Login};
use crate::config::{Config, Place};
use crate::fault::{self, odd_answer};
use crate::link::{Link, within};

/// What a sentinel has for all of its answer, with the connection on which it is asked.
const ANSWER: Duration = Duration::from_secs(1);

/// What the rest of them have when more than half have answered: who counts anew takes back what it told before.
const LAST_WORD: Duration = Duration::from_millis(100);

/// The pause before somebody listens again to a sentinel that is gone.
const PAUSE: Duration = Duration::from_secs(1);

/// Where sentinels tell that a primary was replaced, and that they were told of one by hand.
const NEWS: [&str; 2] = ["+switch-master", "+monitor"];

/// The pause before somebody who listens asks again all the same, at most: a sentinel that lost its state, hangs or was told to
/// forget the primary says nothing of it.
const AGAIN: Duration = Duration::from_secs(10);

/// For so long the word of a sentinel counts that is gone. The others hear within seconds what it knew.
const REMEMBERED: Duration = Duration::from_secs(60);

/// The sentinels that watch over a primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sentinels {
    pub(crate) hosts: Vec<Host>,
    /// What they call the primary and its replicas.
    pub(crate) service: String,
    /// Of the sentinels and of the servers.
    pub(crate) tls: bool,
    /// Who we are on the sentinels.
    pub(crate) login: Login,
}

/// Where a server is, and how new that is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) address: Address,
    /// The count of the sentinels; `None` if the address is a fixed one.
    pub(crate) epoch: Option<u64>,
}

/// What each sentinel said last.
#[derive(Debug, Default)]
pub(crate) struct Words(Vec<Word>);

#[derive(Clone, Debug, Default)]
struct Word {
    said: Option<Found>,
    /// How often it spoke by itself.
    times: u64,
    /// Since when nobody listens to it.
    gone_since: Option<Moment>,
}

impl Words {
    fn of(sentinels: usize) -> Self {
        Self(vec![Word::default(); sentinels])
    }

    fn hears(&mut self, sentinel: usize, said: Found) {
        let times = self.0[sentinel].times + 1;
        self.0[sentinel] = Word { said: Some(said), times, gone_since: None };
    }

    /// How often each of them spoke by itself.
    pub(crate) fn times(&self) -> Vec<u64> {
        self.0.iter().map(|word| word.times).collect()
    }

    /// They were asked when they had spoken so often. Who spoke meanwhile may have said what is newer.
    pub(crate) fn answered(&mut self, answers: &[(usize, Found)], asked_at: &[u64]) {
        for (sentinel, answer) in answers {
            let word = &mut self.0[*sentinel];
            if asked_at.get(*sentinel) == Some(&word.times) {
                (word.said, word.gone_since) = (Some(answer.clone()), None);
            }
        }
    }

    pub(crate) fn loses(&mut self, sentinel: usize) {
        self.0[sentinel].gone_since.get_or_insert_with(Moment::now);
    }

    /// Where the locks are: as the newest of them said, and of those the most.
    pub(crate) fn best(&self) -> Option<&Found> {
        let there: Vec<_> = self.0.iter().filter_map(Word::of_who_is_there).collect();
        match there.len() > self.0.len() / 2 {
            true => newest(&there),
            false => newest(&self.0.iter().filter_map(Word::that_counts).collect::<Vec<_>>()),
        }
    }

    /// True if the locks have moved, and `known` is where they were.
    pub(crate) fn move_on_from(&self, known: &Found) -> bool {
        let Some(best) = self.best().filter(|best| best.address != known.address) else {
            return false;
        };
        let there = self.0.iter().filter_map(Word::of_who_is_there);
        // Those who do not count, or count anew, have to be more than half.
        (best.epoch > Some(0) && best.epoch >= known.epoch)
            || there.filter(|said| said.address == best.address).count() > self.0.len() / 2
    }
}

impl Word {
    fn of_who_is_there(&self) -> Option<&Found> {
        self.said.as_ref().filter(|_| self.gone_since.is_none())
    }

    fn that_counts(&self) -> Option<&Found> {
        let is_over = |since: Moment| (since + REMEMBERED).has_passed();
        self.said.as_ref().filter(|_| !self.gone_since.is_some_and(is_over))
    }
}

/// The highest epoch, and the address that most of those name.
fn newest<'f>(all: &[&'f Found]) -> Option<&'f Found> {
    let votes = |one: &Found| all.iter().filter(|other| **other == one).count();
    all.iter().copied().max_by_key(|found| (found.epoch, votes(found)))
}

impl Sentinels {
    /// Asks all sentinels at once, until more than half of them have answered and the others have had a moment. Tells
    /// which one said what; one at least.
    pub(crate) async fn find(&self, config: &Config) -> Result<Vec<(usize, Found)>, Fault> {
        let mut asked = JoinSet::new();
        for number in 0..self.hosts.len() {
            let (sentinels, config) = (self.clone(), config.clone());
            asked.spawn(async move { Ok((number, sentinels.ask(&config, number).await?)) });
        }
        let majority = self.hosts.len() / 2 + 1;
        let (mut answers, mut faults) = (Vec::new(), Vec::new());
        loop {
            let limit = if answers.len() < majority { ANSWER * 2 } else { LAST_WORD };
            let Some(Some(answer)) = within(limit, asked.join_next()).await else { break };
            match answer {
                Ok(Ok(found)) => answers.push(found),
                Ok(Err(fault)) => faults.push(fault),
                // The runtime ends.
                Err(_) => {}
            }
        }
        // Those who may not say it may know better than the few who may.
        let denied = faults.iter().filter(|fault: &&Fault| fault.kind() == Denied).count();
        match answers.is_empty() || denied >= majority {
            true => Err(self.nobody_knows(faults)),
            false => Ok(answers),
        }
    }

    /// What is said of the primary when nobody has said anything yet.
    pub(crate) fn words(&self) -> Words {
        Words::of(self.hosts.len())
    }

    /// Listens to each sentinel, in tasks of its own, and tells the link what they say.
    pub(crate) fn listen(&self, config: &Arc<Config>, link: &Weak<Link>, tasks: &mut JoinSet<()>) {
        for number in 0..self.hosts.len() {
            let sentinels = self.clone();
            let (config, link) = (Arc::clone(config), Weak::clone(link));
            tasks.spawn(async move {
                // Also if its runtime ends: then nobody would hear of a failover.
                let _listener = Listener { number, link: Weak::clone(&link) };
                loop {
                    if let Err(error) = sentinels.listen_to(&config, number, &link).await {
                        let error = error.into_source();
                        let host = &sentinels.hosts[number];
                        tracing::debug!(sentinel.address = %host, %error, "cannot listen");
                    }
                    let Some(link) = link.upgrade() else { return };
                    link.hears_sentinels(|words| words.loses(number));
                    drop(link);
                    sleep_between(PAUSE / 2, PAUSE).await;
                }
            });
        }
    }

    async fn ask(&self, config: &Config, number: usize) -> Result<Found, Fault> {
        let address = self.address_of(&self.hosts[number]);
        let asking = async {
            let ([_, plain], settings) = (clients(self, config, &address).await?, settings());
            let redis = plain.get_multiplexed_async_connection_with_config(&settings).await;
            let redis = redis.map_err(|error| fault::no_connection(&address, &error))?;
            self.ask_on(&redis, &address).await
        };
        let silent = || Err(fault::silent_from_the_start(&Place::Fixed(address.clone())));
        within(ANSWER, asking).await.unwrap_or_else(silent)
    }

    /// Two questions, as while a failover is completed the second one is answered by the old address. What changes
    /// between them makes the new address look old, and never the old one new: so the epoch is asked for first.
    async fn ask_on(
        &self,
        redis: &MultiplexedConnection,
        address: &Address,
    ) -> Result<Found, Fault> {
        let refusal = |error: RedisError| refusal(address, &error);
        let mut pipe = redis::pipe();
        pipe.cmd("SENTINEL").arg("MASTER").arg(&self.service);
        pipe.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
        let answers = redis.clone().req_packed_commands(&pipe, 0, pipe.len()).await;
        let [known, named] = <[Answer; 2]>::try_from(answers.map_err(refusal)?)
            .map_err(|_| odd_answer("ask a sentinel", "another number of answers"))?;
        let known = match known.extract_error().map_err(refusal) {
            // Without that right, any of them could take back what the others say.
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
        // Services that only speak like sentinels do not count: they are believed if more than half of them agree.
        let epoch = known.and_then(|known| known.get("config-epoch")?.parse().ok());
        let address = Address::Tcp { host: Host { name, port }, tls: self.tls };
        Ok(Found { address, epoch: Some(epoch.unwrap_or(0)) })
    }

    /// Until the connection fails.
    async fn listen_to(
        &self,
        config: &Config,
        number: usize,
        link: &Weak<Link>,
    ) -> Result<(), Fault> {
        let address = self.address_of(&self.hosts[number]);
        let heard = Arc::new(Heard::default());
        let connecting = async {
            let [speaking, _] = clients(self, config, &address).await?;
            let news = News { service: self.service.clone(), heard: Arc::clone(&heard) };
            let settings = settings().set_push_sender(news);
            let connecting = speaking.get_multiplexed_async_connection_with_config(&settings);
            let failed = |error: RedisError| fault::no_connection(&address, &error);
            let mut redis = connecting.await.map_err(failed)?;
            redis.subscribe(&NEWS).await.map_err(|error| refusal(&address, &error))?;
            Ok(redis)
        };
        let redis = in_time(&address, connecting).await?;
        loop {
            // What was told before there was a subscription is known as well.
            let found = in_time(&address, self.ask_on(&redis, &address)).await?;
            match link.upgrade() {
                Some(link) => link.hears_sentinels(|words| words.hears(number, found)),
                None => return Ok(()),
            }
            tokio::select! {
                () = heard.news.notified() => {}
                () = sleep_between(AGAIN / 2, AGAIN) => {}
                _ = heard.end.wait() => return Ok(()),
            }
        }
    }

    fn address_of(&self, host: &Host) -> Address {
        Address::Tcp { host: host.clone(), tls: self.tls }
    }

    /// What is to be put right by hand comes before what may pass.
    fn nobody_knows(&self, faults: Vec<Fault>) -> Fault {
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

/// Somebody who listens to a sentinel, until it is dropped.
struct Listener {
    number: usize,
    link: Weak<Link>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(link) = self.link.upgrade() {
            link.has_lost_a_listener(self.number);
        }
    }
}

impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<_> = self.hosts.iter().map(Host::to_string).collect();
        write!(f, "{}, named by the sentinels {}", self.service, hosts.join(","))
    }
}

async fn in_time<T>(
    address: &Address,
    work: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    within(ANSWER, work).await.unwrap_or_else(|| Err(fault::silent(&address.to_string())))
}

fn settings() -> AsyncConnectionConfig {
    // Whoever asks bounds all of it.
    AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None)
}

async fn clients(
    sentinels: &Sentinels,
    config: &Config,
    address: &Address,
) -> Result<[redis::Client; 2], Fault> {
    let clients = config.clients(address, &sentinels.login, 0);
    clients.await.map_err(|error| Fault::not_applied(Unavailable, error))
}

/// Why a sentinel does not say what it was asked for.
fn refusal(address: &Address, error: &RedisError) -> Fault {
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
struct Heard {
    news: Notify,
    end: SetOnce<()>,
}

/// What a sentinel tells by itself. Runs inside the connection's task.
struct News {
    service: String,
    heard: Arc<Heard>,
}

impl AsyncPushSender for News {
    fn send(&self, push: PushInfo) -> Result<(), SendError> {
        // After the channel, `<service> <old host> <old port> …`, or `master <service> <host> <port> …`.
        if push.kind == PushKind::Message
            && let Some(Answer::BulkString(text)) = push.data.get(1)
            && text.split(|byte| *byte == b' ').take(2).any(|word| word == self.service.as_bytes())
        {
            self.heard.news.notify_one();
        }
        Ok(())
    }
}

impl Drop for News {
    fn drop(&mut self) {
        // It is set nowhere else.
        let _ = self.heard.end.set(());
    }
}

#[cfg(test)]
mod tests {
    use lock_conformance::proxy::{Match, Proxy};
    use lock_conformance::helpers::eventually;
    use test_servers::{RedisOptions, SentinelGroup};

    use super::*;

    fn found(port: u16, epoch: u64) -> Found {
        let host = Host { name: "127.0.0.1".to_owned(), port };
        Found { address: Address::Tcp { host, tls: false }, epoch: Some(epoch) }
    }

    #[test]
    fn a_sentinel_that_was_cut_off_takes_nothing_back_of_what_others_have_said() {
        let mut words = Words::of(3);
        assert_eq!(words.best(), None);
        (0..3).for_each(|sentinel| words.hears(sentinel, found(1, 3)));
        assert!(!words.move_on_from(&found(1, 3)) && words.move_on_from(&found(9, 3)));
        // One of them is the first to tell of a failover.
        words.hears(1, found(2, 5));
        assert_eq!(words.best(), Some(&found(2, 5)));
        assert!(words.move_on_from(&found(1, 3)) && !words.move_on_from(&found(2, 5)));
        // Those who know are not heard any more, and one that is behind is.
        words.loses(1);
        words.hears(1, found(2, 5));
        words.hears(2, found(2, 5));
        (1..3).for_each(|sentinel| words.loses(sentinel));
        words.hears(0, found(1, 3));
        assert_eq!(words.best(), Some(&found(2, 5)));
        assert!(!words.move_on_from(&found(2, 5)) && words.move_on_from(&found(1, 3)));
    }

    #[test]
    fn answers_that_were_asked_for_before_the_news_take_nothing_back() {
        let mut words = Words::of(3);
        words.hears(0, found(1, 3));
        let before = words.times();
        words.hears(0, found(2, 5));
        words.answered(&[(0, found(1, 3)), (1, found(1, 3))], &before);
        assert_eq!(words.best(), Some(&found(2, 5)));
        words.answered(&[(0, found(1, 0)), (1, found(1, 0))], &words.times());
        assert_eq!(words.best(), Some(&found(1, 0)), "two of three have said so now");
    }

    #[test]
    fn sentinels_that_count_anew_are_believed() {
        let mut words = Words::of(3);
        (0..3).for_each(|sentinel| words.hears(sentinel, found(2, 5)));
        // They lost their state, and were told of another primary.
        words.hears(0, found(1, 0));
        assert!(!words.move_on_from(&found(2, 5)), "the others have not said so");
        words.hears(2, found(1, 0));
        assert!(!words.move_on_from(&found(2, 5)), "one of them is heard and says otherwise");
        words.loses(1);
        assert!(words.move_on_from(&found(2, 5)), "it is gone, and the rest is more than half");
        assert_eq!(words.best(), Some(&found(1, 0)));
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_are_gone_are_forgotten_after_a_minute() {
        let mut words = Words::of(3);
        (0..3).for_each(|sentinel| words.hears(sentinel, found(2, 5)));
        (1..3).for_each(|sentinel| words.loses(sentinel));
        words.hears(0, found(1, 0));
        assert_eq!(words.best(), Some(&found(2, 5)));
        tokio::time::advance(REMEMBERED / 2).await;
        (1..3).for_each(|sentinel| words.loses(sentinel));
        assert_eq!(words.best(), Some(&found(2, 5)));
        tokio::time::advance(REMEMBERED / 2 + Duration::from_millis(1)).await;
        assert_eq!(words.best(), Some(&found(1, 0)), "they were lost again and again, since then");
    }

    #[test]
    fn those_that_do_not_count_are_believed_if_most_of_them_agree() {
        let mut words = Words::of(3);
        (0..3).for_each(|sentinel| words.hears(sentinel, found(1, 0)));
        words.hears(1, found(2, 0));
        assert!(!words.move_on_from(&found(1, 0)));
        words.hears(0, found(2, 0));
        assert!(words.move_on_from(&found(1, 0)));
        let [one, other] = [found(2, 0), found(1, 0)];
        assert_eq!(newest(&[&one, &other, &one]), Some(&one));
        assert_eq!(newest(&[&other, &one, &one]), Some(&one));
    }

    /// The first Sentinel hears from another one that this server is the primary now.
    async fn hears_of(group: &SentinelGroup, server: usize, epoch: u64) {
        let (teller, hearer) = (group.sentinel(1), group.sentinel(0));
        let (id, from) = (teller.command(&["SENTINEL", "MYID"]).text(), teller.addr().port());
        let (service, port) = (group.service(), group.server(server).addr().port());
        let news =
            format!("127.0.0.1,{from},{},{epoch},{service},127.0.0.1,{port},{epoch}", id.trim());
        eventually(|| {
            // Where Sentinels tell each other.
            for number in [0, 1] {
                group.server(number).command(&["PUBLISH", "__sentinel__:hello", &news]);
            }
            hearer.named() == Some(port)
        })
        .await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_changes_between_two_questions_never_makes_an_old_address_new() {
        let group = tokio::task::spawn_blocking(|| SentinelGroup::start(RedisOptions::new()));
        let group = group.await.unwrap();
        let way = Proxy::start(group.sentinel(0).addr()).unwrap();
        let url = format!("redis+sentinel://{}/{}", way.addr(), group.service());
        let config = Config::new(&url).unwrap();
        let Place::Named(sentinels) = config.place.clone() else { panic!("it names sentinels") };
        let address = sentinels.address_of(&sentinels.hosts[0]);
        let [_, plain] = clients(&sentinels, &config, &address).await.unwrap();
        let redis = plain.get_multiplexed_async_connection_with_config(&settings()).await.unwrap();
        for (server, epoch) in [(1, 100), (0, 200)] {
            let answered = way.stats().to_client.received;
            // The second question: nothing else that is sent has that word.
            let mut held = way.hold(Match::on("SENTINEL").nth(2));
            let asking = tokio::spawn({
                let (sentinels, redis, address) =
                    (sentinels.clone(), redis.clone(), address.clone());
                async move { sentinels.ask_on(&redis, &address).await }
            });
            held.caught().await.unwrap();
            way.until(|stats| stats.to_client.received > answered).await;
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
