//! `flock(1)`, as scripts use it on a descriptor of theirs: `flock 9` in `( …; work ) 9>file`.
//!
//! Each acquisition is a process, and its start and end are nearly all of the figure.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::task::spawn_blocking;

use super::file_lock::directory;
use lock_bench_worker::Lib;

pub(crate) struct Flock(PathBuf);

impl Flock {
    pub(crate) fn at(url: &str) -> Result<Self, String> {
        directory(url).map(Self)
    }
}

impl Lib for Flock {
    type Lock = PathBuf;
    type Held = File;

    fn lock(&self, name: &str) -> Result<Self::Lock, String> {
        Ok(self.0.join(name.replace('/', "_")))
    }

    /// Locks the open file, which this process shares with the child.
    async fn acquire(&self, lock: &Self::Lock, _ttl: Duration) -> Result<Self::Held, String> {
        let path = lock.clone();
        let locked = spawn_blocking(move || {
            let file = File::options().create(true).truncate(false).write(true).open(path)?;
            let mut flock = Command::new("flock");
            let status = flock.arg("0").stdin(Stdio::from(file.try_clone()?)).status()?;
            Ok::<_, std::io::Error>((file, status))
        });
        let (file, status) = locked
            .await
            .map_err(|e| e.to_string())?
            .map_err(|e| format!("no flock(1); it is in util-linux: {e}"))?;
        status.success().then_some(file).ok_or_else(|| format!("flock(1) ended with {status}"))
    }

    async fn release(&self, held: Self::Held) -> Result<(), String> {
        drop(held);
        Ok(())
    }
}
