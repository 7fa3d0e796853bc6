//! `Lock::run` and its kin, and names in every form.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use lock_core::clock::sleep;
use lock_core::{ErrorKind, Locker, Memory, RunError};

#[tokio::test(start_paused = true)]
async fn work_runs_under_the_lock_which_is_free_afterwards() {
    let locks = Locker::new(Memory::new());
    let lock = locks.lock("n").unwrap();
    let held = lock.run(async |guard| Ok::<_, ()>(guard.is_held())).await.unwrap();
    assert!(held);
    assert!(lock.try_acquire().await.unwrap().is_some(), "released");
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_work_is_told_apart_and_the_lock_is_free() {
    let locks = Locker::new(Memory::new());
    let lock = locks.lock("n").unwrap();
    let failed = lock.run(async |_| Err::<(), _>("no funds")).await;
    assert!(matches!(failed, Err(RunError::Work("no funds"))), "{failed:?}");
    assert!(lock.try_acquire().await.unwrap().is_some(), "released");
}

#[tokio::test(start_paused = true)]
async fn a_boxed_error_of_the_work_passes_on() {
    async fn pay(locks: &Locker) -> Result<(), Box<dyn std::error::Error>> {
        let lock = locks.lock("n")?;
        lock.run(async |_| Err::<(), Box<dyn std::error::Error + Send + Sync>>("no funds".into()))
            .await?;
        Ok(())
    }
    let failed = pay(&Locker::new(Memory::new())).await.unwrap_err();
    assert_eq!(failed.to_string(), "no funds");
}

#[tokio::test(start_paused = true)]
async fn a_loss_drops_the_work() {
    let memory = Memory::new();
    let locks = Locker::new(memory.clone());
    let lock = locks.lock("n").unwrap();
    let lost = lock
        .run(async |guard| {
            memory.evict(guard.name());
            sleep(Duration::from_secs(3600)).await;
            Ok::<_, ()>("after the loss")
        })
        .await;
    let Err(RunError::Lost(error)) = lost else { panic!("{lost:?}") };
    assert_eq!(error.kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn a_failed_release_keeps_the_value() {
    let memory = Memory::new();
    let locks = Locker::new(memory.clone());
    let done = locks
        .lock("n")
        .unwrap()
        .run(async |guard| {
            memory.evict(guard.name());
            Ok::<_, ()>(7)
        })
        .await;
    let Err(RunError::Release { value: 7, error }) = done else { panic!("{done:?}") };
    assert_eq!(error.kind(), ErrorKind::NotHeld);
}

#[tokio::test(start_paused = true)]
async fn dropped_work_releases_the_lock() {
    let memory = Memory::new();
    let locks = Locker::new(memory.clone());
    let lock = locks.lock("n").unwrap();
    let endless = lock.run(async |_| std::future::pending::<Result<(), ()>>().await);
    assert!(tokio::time::timeout(Duration::from_secs(5), endless).await.is_err());
    locks.close().await.unwrap();
    assert!(memory.is_empty(), "the lock is held, and no caller has it");
}

#[tokio::test(start_paused = true)]
async fn contention_is_none() {
    let locks = Locker::new(Memory::new());
    let lock = locks.lock("n").unwrap();
    let _guard = lock.acquire().await.unwrap();
    let tried = lock.try_run(async |_| Ok::<_, ()>(())).await;
    assert!(matches!(tried, Ok(None)), "{tried:?}");
    let wait = Duration::from_millis(50);
    let tried = lock.try_run_for(wait, async |_| Ok::<_, ()>(())).await;
    assert!(matches!(tried, Ok(None)), "{tried:?}");
}

#[tokio::test(start_paused = true)]
async fn names_come_in_every_form() {
    let locks = Locker::new(Memory::new());
    let owned = String::from("n");
    let guard = locks.lock(&owned).unwrap().acquire().await.unwrap();
    for lock in [
        locks.lock(Cow::Borrowed("n")),
        locks.lock(Box::<str>::from("n")),
        locks.lock(Arc::<str>::from("n")),
        locks.lock(owned),
    ] {
        assert_eq!(lock.unwrap().name(), guard.name());
    }
    assert_eq!(locks.inspect("n").await.unwrap().holders.len(), 1);
    assert!(locks.break_lock("n", guard.owner()).await.unwrap());
    assert_eq!(locks.inspect("").await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test(start_paused = true)]
async fn a_token_can_be_required_and_stored() {
    let guard = Locker::new(Memory::new()).lock("n").unwrap().acquire().await.unwrap();
    let token = guard.require_token().unwrap();
    assert_eq!(u64::from(token), token.as_u64());
    assert_eq!(u64::try_from(token.as_i64()), Ok(token.as_u64()));
}
