//! A quorum of real servers, and the runtimes of its callers. On the real clock.

use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::MemberState;
use lock_core::{Backend, Locker};
use lock_quorum::Quorum;
use test_servers::{Redis, RedisOptions};
use tokio::runtime::Runtime;

#[test]
fn a_lock_outlives_the_runtimes_of_its_callers() {
    let servers = [(); 3].map(|()| Redis::start(RedisOptions::new()));
    let [connects, wins] = [(); 2].map(|()| Runtime::new().unwrap());
    let mut quorum = Quorum::builder().members_remember();
    // One that the quorum connects itself, and two that are there.
    let url = servers[0].url();
    quorum = quorum.member_by("first", move || {
        let url = url.clone();
        async move {
            let redis = lock_redis::Redis::connect(&*url).await?;
            Ok(Arc::new(redis) as Arc<dyn Backend>)
        }
    });
    let quorum = connects.block_on(async {
        for server in &servers[1..] {
            quorum = quorum.member(lock_redis::Redis::connect(&*server.url()).await.unwrap());
        }
        quorum.build().await.unwrap()
    });
    let locks = Locker::new(quorum);
    let lock = locks.lock("n").unwrap().ttl(Duration::from_millis(500));
    let guard = wins.block_on(lock.acquire()).unwrap();
    drop(connects);
    wins.shutdown_background();
    let here = Runtime::new().unwrap();
    here.block_on(async {
        // Ten leases.
        let lost = tokio::time::timeout(Duration::from_secs(5), guard.lost()).await;
        assert!(lost.is_err(), "{lost:?}");
        let state = locks.inspect(guard.name()).await.unwrap();
        let knows = |it: &&MemberState| it.holders.as_ref().is_ok_and(|holders| holders.len() == 1);
        assert_eq!(state.members.iter().filter(knows).count(), 3, "{state:?}");
        guard.release().await.unwrap();
    });
}
