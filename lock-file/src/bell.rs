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

    fn on(path: &Path, events: WatchFlags) -> Option<Self> {
        let tower = tower()?;
        let mut ropes = tower.ropes();
        // Under the same lock as its removal, or a watch of the same file could go with another one.
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
