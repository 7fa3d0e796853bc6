//! The state of a worker between two commands.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::{JoinSet, yield_now};

use crate::clock::{now, reach};
use crate::commands::{Command, Count};
use crate::library::Lib;
use crate::pairs;

/// The number of locks that are acquired or released at once.
const AT_ONCE: usize = 64;

pub(crate) struct Session<L: Lib> {
    lib: Arc<L>,
    ttl: Duration,
    held: HashMap<String, (L::Held, Claim)>,
    kept: Vec<L::Held>,
    waiters: JoinSet<Result<(String, Vec<Claim>), String>>,
    claims: BTreeMap<String, Vec<Claim>>,
}

/// One hold, as its holder saw it.
#[derive(Clone, Copy, Debug)]
struct Claim {
    asked: u64,
    acquired: u64,
    releasing: u64,
    released: u64,
    token: Option<u64>,
}

/// Why a command was not executed.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The library does not support it.
    Cannot(&'static str),
    /// It failed.
    Failed(String),
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

impl<L: Lib> Session<L> {
    pub(crate) fn new(lib: L) -> Self {
        Self {
            lib: Arc::new(lib),
            ttl: Duration::from_secs(30),
            held: HashMap::new(),
            kept: Vec::new(),
            waiters: JoinSet::new(),
            claims: BTreeMap::new(),
        }
    }

    pub(crate) async fn execute(&mut self, command: Command) -> Result<Value, Failure> {
        let cannot = match command {
            Command::Queue { .. } => L::CANNOT_WAIT,
            Command::Keep { .. } => L::CANNOT_KEEP,
            _ => None,
        };
        match cannot {
            Some(why) => Err(Failure::Cannot(why)),
            None => Ok(self.carry_out(command).await?),
        }
    }

    async fn carry_out(&mut self, command: Command) -> Result<Value, String> {
        match command {
            Command::Ttl(ttl) => {
                self.ttl = ttl;
                Ok(json!({}))
            }
            Command::Pairs(pairs) => pairs::run(&self.lib, self.ttl, &pairs).await,
            Command::Hold(name) => self.hold(name).await,
            Command::Free(name) => self.free(&name).await,
            Command::Try(name) => self.try_hold(name).await,
            Command::Extend { name, ttl } => {
                let (held, _) = self.held_as(&name)?;
                self.lib.extend(held, ttl).await?;
                Ok(json!({ "extended": true }))
            }
            Command::Held(name) => {
                let (held, _) = self.held_as(&name)?;
                Ok(json!({ "held": L::valid_for(held).is_some() }))
            }
            Command::Count(count) => self.count(&count).await,
            Command::Queue { name, waiters, hold, times } => {
                self.queue(&name, waiters, hold, times).await
            }
            Command::Collect => self.collect().await,
            Command::Keep { prefix, count } => self.keep(&prefix, count).await,
            Command::Kept => Ok(self.kept()),
            Command::Drop => self.drop_kept().await,
        }
    }

    async fn hold(&mut self, name: String) -> Result<Value, String> {
        let lock = self.lib.lock(&name)?;
        let (held, claim) = acquire(&*self.lib, &lock, self.ttl).await?;
        let answer = json!({
            "asked": claim.asked,
            "acquired": claim.acquired,
            "token": claim.token.map(|token| token.to_string()),
        });
        self.held.insert(name, (held, claim));
        Ok(answer)
    }

    async fn try_hold(&mut self, name: String) -> Result<Value, String> {
        let lock = self.lib.lock(&name)?;
        let asked = now();
        let Some(held) = self.lib.try_acquire(&lock, self.ttl).await? else {
            return Ok(json!({ "held": false, "asked": asked, "acquired": now() }));
        };
        let (acquired, token) = (now(), L::token(&held));
        let claim = Claim { asked, acquired, releasing: 0, released: 0, token };
        self.held.insert(name, (held, claim));
        Ok(json!({ "held": true, "asked": asked, "acquired": acquired }))
    }

    fn held_as(&self, name: &str) -> Result<&(L::Held, Claim), String> {
        self.held.get(name).ok_or_else(|| format!("{name} was not acquired"))
    }

    /// Increments the counter in a file until the time is over. The read and the write are two
    /// steps, so that an overlap of two holders loses an update.
    async fn count(&self, count: &Count) -> Result<Value, String> {
        let lock = self.lib.lock(&count.name)?;
        let end = now() + nanos(count.time);
        let reach = async |moment| reach(moment).await.map_err(|e| format!("no timer: {e}"));
        let mut grants = Vec::new();
        while now() < end {
            let (held, claim) = acquire(&*self.lib, &lock, self.ttl).await?;
            let seen = std::fs::read_to_string(&count.file).map_err(|e| e.to_string())?;
            let seen: u64 = seen.parse().map_err(|_| format!("the counter is {seen:?}"))?;
            reach(now() + nanos(count.hold)).await?;
            std::fs::write(&count.file, (seen + 1).to_string()).map_err(|e| e.to_string())?;
            let claim = release(&*self.lib, held, claim).await?;
            let token = claim.token.map(|token| token.to_string());
            grants.push(json!([claim.acquired, claim.releasing, token]));
            reach(now() + nanos(count.pause)).await?;
        }
        Ok(json!({ "grants": grants }))
    }

    async fn free(&mut self, name: &str) -> Result<Value, String> {
        let (held, claim) = self.held.remove(name).ok_or_else(|| format!("{name} is not held"))?;
        let claim = release(&*self.lib, held, claim).await?;
        self.claims.entry(name.to_owned()).or_default().push(claim);
        Ok(json!({ "let_go": claim.releasing, "freed": claim.released }))
    }

    /// Starts the waiters, and answers when each of them has asked, even if none has the lock by
    /// then.
    async fn queue(
        &mut self,
        name: &str,
        waiters: usize,
        hold: Duration,
        times: u64,
    ) -> Result<Value, String> {
        let lock = self.lib.lock(name)?;
        let asked = Arc::new(AtomicUsize::new(0));
        for _ in 0..waiters {
            let (lib, lock, ttl) = (Arc::clone(&self.lib), lock.clone(), self.ttl);
            let (name, asked) = (name.to_owned(), Arc::clone(&asked));
            self.waiters.spawn(async move {
                asked.fetch_add(1, Ordering::Relaxed);
                let mut claims = Vec::new();
                for _ in 0..times {
                    let (held, claim) = acquire(&*lib, &lock, ttl).await?;
                    if !hold.is_zero() {
                        let until = claim.acquired + nanos(hold);
                        reach(until).await.map_err(|e| format!("no timer: {e}"))?;
                    }
                    claims.push(release(&*lib, held, claim).await?);
                }
                Ok((name, claims))
            });
        }
        while asked.load(Ordering::Relaxed) < waiters {
            yield_now().await;
        }
        Ok(json!({}))
    }

    async fn collect(&mut self) -> Result<Value, String> {
        while let Some(waiter) = self.waiters.join_next().await {
            let (name, claims) = waiter.map_err(|e| format!("a waiter ended: {e}"))??;
            self.claims.entry(name).or_default().extend(claims);
        }
        let claims = std::mem::take(&mut self.claims);
        let claims: BTreeMap<String, Vec<Value>> = claims
            .into_iter()
            .map(|(name, claims)| (name, claims.into_iter().map(Claim::into_json).collect()))
            .collect();
        Ok(json!({ "claims": claims }))
    }

    async fn keep(&mut self, prefix: &str, count: usize) -> Result<Value, String> {
        let mut begun = 0;
        let mut tasks = JoinSet::new();
        self.kept.reserve_exact(count);
        while begun < count || !tasks.is_empty() {
            while begun < count && tasks.len() < AT_ONCE {
                let lock = self.lib.lock(&format!("{prefix}-{begun}"))?;
                let (lib, ttl) = (Arc::clone(&self.lib), self.ttl);
                tasks.spawn(async move { lib.acquire(&lock, ttl).await });
                begun += 1;
            }
            if let Some(task) = tasks.join_next().await {
                self.kept.push(task.map_err(|e| format!("a task ended: {e}"))??);
            }
        }
        Ok(self.kept())
    }

    fn kept(&self) -> Value {
        let left: Vec<Duration> = self.kept.iter().filter_map(L::valid_for).collect();
        let least = left.iter().filter(|left| **left < Duration::MAX).min();
        let least = least.map(|least| least.as_secs_f64() * 1e3);
        json!({
            "held": left.len(),
            "lost": self.kept.len() - left.len(),
            "least_left_ms": least,
        })
    }

    async fn drop_kept(&mut self) -> Result<Value, String> {
        let mut tasks = JoinSet::new();
        let mut released = 0;
        while !self.kept.is_empty() || !tasks.is_empty() {
            while let Some(held) = self.kept.pop_if(|_| tasks.len() < AT_ONCE) {
                let lib = Arc::clone(&self.lib);
                tasks.spawn(async move { lib.release(held).await });
            }
            if let Some(task) = tasks.join_next().await {
                task.map_err(|e| format!("a task ended: {e}"))??;
                released += 1;
            }
        }
        Ok(json!({ "released": released }))
    }
}

async fn acquire<L: Lib>(
    lib: &L,
    lock: &L::Lock,
    ttl: Duration,
) -> Result<(L::Held, Claim), String> {
    let asked = now();
    let held = lib.acquire(lock, ttl).await?;
    let acquired = now();
    let token = L::token(&held);
    Ok((held, Claim { asked, acquired, releasing: 0, released: 0, token }))
}

async fn release<L: Lib>(lib: &L, held: L::Held, claim: Claim) -> Result<Claim, String> {
    let releasing = now();
    lib.release(held).await?;
    Ok(Claim { releasing, released: now(), ..claim })
}

impl Claim {
    fn into_json(self) -> Value {
        let Self { asked, acquired, releasing, released, token } = self;
        json!([asked, acquired, releasing, released, token.map(|token| token.to_string())])
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
