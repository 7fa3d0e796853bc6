//! Who waits for a file to be closed: `inotify(7)`, and one thread that listens for all.
//!
//! A thread and not the runtime's own reactor, because a process has only so many inotify instances
//! (128 per user by default) and may have many runtimes, and because these need no more than timers.
//! It is started by the first waiter, sleeps in the kernel, and stays.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::sync::Notify;

/// Whether waiters are woken at all here.
pub(crate) const IS_THERE: bool = true;

/// Whether this process gets what it takes to be woken.
pub(crate) fn can_ring() -> bool {
    tower().is_some()
}

/// Rings when the file it hangs on may have been let go. Dropping it takes it down.
#[derive(Debug)]
pub(crate) struct Bell {
    tower: &'static Tower,
    watch: i32,
    rope: Arc<Notify>,
}

impl Bell {
    /// On a lock file: rings when somebody closes it, whatever for; when it is deleted or replaced;
    /// and when it is [rung](crate::lock_file::LockFile::ring). `None` if it is not there, or if no
    /// more files can be watched: then who waits has to look by itself.
    pub(crate) fn on_lock(path: &Path) -> Option<Self> {
        let closed = WatchFlags::CLOSE_WRITE | WatchFlags::CLOSE_NOWRITE;
        Self::on(path, closed | WatchFlags::ATTRIB | WatchFlags::DELETE_SELF)
    }

    /// On a place in the line: rings when it is given up. Not when somebody looks whether it is.
    pub(crate) fn on_place(path: &Path) -> Option<Self> {
        let left = WatchFlags::CLOSE_WRITE | WatchFlags::ATTRIB | WatchFlags::DELETE_SELF;
        Self::on(path, left)
    }

    /// On a lock file: rings when it is deleted, replaced or moved away.
    pub(crate) fn on_removal(path: &Path) -> Option<Self> {
        let removed = WatchFlags::ATTRIB | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        Self::on(path, removed)
    }

    fn on(path: &Path, events: WatchFlags) -> Option<Self> {
        let tower = tower()?;
        let mut ropes = tower.ropes();
        // Under the same lock as its removal, or a watch of the same file could go with another one.
        // Holders and waiters of one file have one watch, and it must not forget what others want.
        let events = events | WatchFlags::MASK_ADD | WatchFlags::DONT_FOLLOW;
        let watch = inotify::add_watch(&tower.inotify, path, events).ok()?;
        let rope = Arc::new(Notify::new());
        ropes.entry(watch).or_default().push(Arc::clone(&rope));
        Some(Self { tower, watch, rope })
    }

    /// Waits until it rings. What rang since it was hung up counts.
    pub(crate) async fn rung(&self) {
        self.rope.notified().await;
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        let mut ropes = self.tower.ropes();
        if let Some(hung) = ropes.get_mut(&self.watch) {
            hung.retain(|rope| !Arc::ptr_eq(rope, &self.rope));
            if hung.is_empty() {
                ropes.remove(&self.watch);
                // Fails if the file is gone, and the watch with it.
                let _ = inotify::remove_watch(&self.tower.inotify, self.watch);
            }
        }
    }
}

/// All bells of this process.
#[derive(Debug)]
struct Tower {
    inotify: OwnedFd,
    ropes: Mutex<HashMap<i32, Vec<Arc<Notify>>>>,
}

/// `None` if this process gets no inotify instance or no thread. It is asked again by the next one.
fn tower() -> Option<&'static Tower> {
    static TOWER: OnceLock<Tower> = OnceLock::new();
    static BUILDING: Mutex<()> = Mutex::new(());

    if let Some(tower) = TOWER.get() {
        return Some(tower);
    }
    let _one_builds = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    if TOWER.get().is_none() {
        let inotify = inotify::init(CreateFlags::CLOEXEC).ok()?;
        let listening = std::thread::Builder::new().name("lock-file".to_owned());
        let (here, hears) = std::sync::mpsc::channel::<&'static Tower>();
        listening.spawn(move || hears.recv().map(Tower::listen)).ok()?;
        let tower = TOWER.get_or_init(|| Tower { inotify, ropes: Mutex::default() });
        here.send(tower).ok()?;
    }
    TOWER.get()
}

impl Tower {
    fn listen(&self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(event) => self.ring(event.wd(), event.events()),
                Err(Errno::INTR) => {}
                // Not on a descriptor that nobody else has. Waiters look by themselves after a while.
                Err(_) => return,
            }
        }
    }

    fn ring(&self, watch: i32, events: ReadFlags) {
        let mut ropes = self.ropes();
        if events.contains(ReadFlags::QUEUE_OVERFLOW) {
            ropes.values().flatten().for_each(|rope| rope.notify_one());
        }
        if let Some(hung) = ropes.get(&watch) {
            hung.iter().for_each(|rope| rope.notify_one());
        }
        if events.contains(ReadFlags::IGNORED) {
            ropes.remove(&watch);
        }
    }

    fn ropes(&self) -> MutexGuard<'_, HashMap<i32, Vec<Arc<Notify>>>> {
        self.ropes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::time::Duration;

    use super::*;

    /// A barrier: what was caused before has been heard by then.
    async fn rang(bell: &Bell, dir: &Path) -> bool {
        let last = dir.join("last");
        File::create(&last).unwrap();
        let end = Bell::on_lock(&last).unwrap();
        drop(File::open(&last).unwrap());
        end.rung().await;
        tokio::time::timeout(Duration::ZERO, bell.rung()).await.is_ok()
    }

    #[tokio::test]
    async fn a_bell_rings_when_a_file_is_let_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n");
        assert!(Bell::on_lock(&path).is_none(), "there is nothing");
        let held = File::create(&path).unwrap();
        let (bell, other) = (Bell::on_lock(&path).unwrap(), Bell::on_lock(&path).unwrap());
        assert!(!rang(&bell, dir.path()).await);
        drop(held);
        assert!(rang(&bell, dir.path()).await && rang(&other, dir.path()).await);
        drop(other);
        assert!(!rang(&bell, dir.path()).await);
        // As flock(1) has it open.
        drop(File::open(&path).unwrap());
        assert!(
            rang(&bell, dir.path()).await,
            "the end of the other bell was not that of this one"
        );
        std::fs::write(dir.path().join("new"), "").unwrap();
        std::fs::rename(dir.path().join("new"), &path).unwrap();
        assert!(rang(&bell, dir.path()).await, "it was replaced");
    }

    #[tokio::test]
    async fn a_bell_can_be_rung_while_others_have_the_file_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n");
        let directory = crate::directory::Directory::open(dir.path()).unwrap();
        let file = crate::lock_file::LockFile::draft(&directory, &path).unwrap();
        let bell = Bell::on_lock(&path).unwrap();
        assert!(!rang(&bell, dir.path()).await);
        file.ring();
        assert!(rang(&bell, dir.path()).await);
    }

    #[tokio::test]
    async fn a_place_does_not_ring_when_it_is_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n");
        let taken = OpenOptions::new().write(true).create(true).truncate(true).open(&path).unwrap();
        let bell = Bell::on_place(&path).unwrap();
        drop(File::open(&path).unwrap());
        assert!(!rang(&bell, dir.path()).await);
        drop(taken);
        assert!(rang(&bell, dir.path()).await);
    }
}
