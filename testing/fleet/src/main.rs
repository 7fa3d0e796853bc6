//! `fleet-worker [detached] URL`: our side of the fleet, a process that executes the commands of
//! `testing/bench/PROTOCOL.md`. With `detached` it renews nothing by itself, and sends each request
//! of a lock that it has lost.

use std::process::ExitCode;
use std::time::Duration;

use lock_any::{Detached, LockGuard, Locker};
use lock_bench_worker::{Lib, runtime, serve};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (url, detached) = match words.as_slice() {
        [url] => (url, false),
        [word, url] if word == "detached" => (url, true),
        _ => {
            eprintln!("usage: fleet-worker [detached] URL");
            return ExitCode::FAILURE;
        }
    };
    let run = || {
        runtime(0)?.block_on(async {
            let locker = lock_any::connect(url).await.map_err(|error| error.to_string())?;
            serve(Locks { locker, detached }).await;
            Ok::<_, String>(())
        })
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fleet-worker: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Locks {
    locker: Locker,
    detached: bool,
}

enum Held {
    Guard(LockGuard),
    Detached(Detached),
}

impl Locks {
    fn lock(&self, name: &str, ttl: Duration) -> Result<lock_any::Lock, String> {
        let lock = self.locker.lock(name).map_err(|error| error.to_string())?.ttl(ttl);
        Ok(if self.detached { lock.detachable() } else { lock })
    }

    async fn keep(&self, guard: LockGuard) -> Result<Held, String> {
        match self.detached {
            true => guard.detach().await.map(Held::Detached).map_err(|error| error.to_string()),
            false => Ok(Held::Guard(guard)),
        }
    }
}

impl Lib for Locks {
    type Lock = String;
    type Held = Held;

    fn lock(&self, name: &str) -> Result<String, String> {
        Ok(name.to_owned())
    }

    async fn acquire(&self, name: &String, ttl: Duration) -> Result<Held, String> {
        let guard = self.lock(name, ttl)?.acquire().await.map_err(|error| error.to_string())?;
        self.keep(guard).await
    }

    async fn try_acquire(&self, name: &String, ttl: Duration) -> Result<Option<Held>, String> {
        let guard = self.lock(name, ttl)?.try_acquire().await.map_err(|error| error.to_string())?;
        match guard {
            Some(guard) => self.keep(guard).await.map(Some),
            None => Ok(None),
        }
    }

    async fn extend(&self, held: &Held, ttl: Duration) -> Result<(), String> {
        let extended = match held {
            Held::Guard(guard) => guard.extend(ttl).await,
            Held::Detached(detached) => self.locker.renew_detached(detached).await.map(drop),
        };
        extended.map_err(|error| error.to_string())
    }

    async fn release(&self, held: Held) -> Result<(), String> {
        let released = match held {
            Held::Guard(guard) => guard.release().await,
            Held::Detached(detached) => self.locker.release_detached(&detached).await,
        };
        released.map_err(|error| error.to_string())
    }

    fn token(held: &Held) -> Option<u64> {
        match held {
            Held::Guard(guard) => guard.fencing_token().map(lock_any::FencingToken::as_u64),
            Held::Detached(_) => None,
        }
    }

    fn valid_for(held: &Held) -> Option<Duration> {
        match held {
            Held::Guard(guard) => {
                guard.is_held().then(|| guard.valid_for().unwrap_or(Duration::MAX))
            }
            Held::Detached(_) => Some(Duration::MAX),
        }
    }
}
