//! Checks among processes of one client, each of which shows a broken promise.

use std::path::Path;
use std::time::Duration;

use lock_any::clock::sleep;
use lock_fleet::{CLIENTS, Promise, Side};

use crate::scene::{Answer, Scene, Worker};

/// Returns how many hold at once.
pub(crate) fn holders(promise: &'static Promise, target: &Path) -> Result<String, String> {
    let client = CLIENTS.iter().find(|client| client.name == promise.client);
    let client = client.ok_or_else(|| format!("no client {}", promise.client))?;
    let scene = Scene::start(client, target, "");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime can be made").block_on(async {
        let first = &mut scene.worker_with(Side::Theirs, promise.options).await?;
        let second = &mut scene.worker_with(Side::Theirs, promise.options).await?;
        match promise.check {
            "endless" => {
                first.ttl(20_000).await?;
                second.ttl(20_000).await?;
                let both = [acquires(first).await?, acquires(second).await?];
                Ok(format!("{} hold", both.into_iter().filter(|&is| is).count()))
            }
            "semaphore" => {
                first.ttl(20_000).await?;
                second.ttl(1_000).await?;
                let one = acquires(first).await?;
                sleep(Duration::from_millis(1_300)).await;
                let two = acquires(second).await?;
                is_still_held(first).await?;
                Ok(format!("{} hold", usize::from(one) + usize::from(two)))
            }
            other => Err(format!("no check {other}")),
        }
    })
}

async fn acquires(worker: &mut Worker) -> Result<bool, String> {
    Ok(worker.tries("n").await? == Answer::Yes)
}

/// Checks that the client does not treat the lock as lost, if it tells.
async fn is_still_held(worker: &mut Worker) -> Result<(), String> {
    match worker.is_held("n").await? {
        Answer::Yes | Answer::Unknown => Ok(()),
        answer => Err(format!("it treats the lock as lost: {answer:?}")),
    }
}
