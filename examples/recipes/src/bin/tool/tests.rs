use std::time::Duration;

use lock_any::{Locker, Memory};

use super::run_scripts;

// Each test has a lock space of its own, without a server.
#[tokio::test]
async fn a_second_call_does_not_wait_for_ever() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    std::fs::write(directory.path().join("1.sh"), "exit 1")?; // fails if it runs
    let locks = Locker::new(Memory::new());

    let guard = locks.lock("migrations")?.acquire().await?;
    let error = run_scripts(&locks, Duration::from_millis(10), directory.path()).await;
    assert_eq!(error.unwrap_err().to_string(), "another process has not ended in time");
    guard.release().await?;
    Ok(())
}

#[tokio::test]
async fn a_script_runs_once() -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let log = directory.path().join("log");
    std::fs::write(directory.path().join("1.sh"), format!("echo run >>'{}'", log.display()))?;
    let locks = lock_any::connect("memory:?private=yes").await?;

    for _ in 0..2 {
        run_scripts(&locks, Duration::ZERO, directory.path()).await?;
    }
    assert_eq!(std::fs::read_to_string(log)?, "run\n");
    Ok(())
}
