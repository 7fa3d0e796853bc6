//! Wake-ups: `epoll(7)` for the pipes of the queue, `inotify(7)` for lock files, and one thread
//! that reads both.
//!
//! The thread is separate from the runtime's reactor, because a process may have many runtimes, and
//! because these need no more than timers. The first waiter starts it. It sleeps in the kernel and
//! never ends.
//!
//! A user has few inotify instances, 128 by default. So a process takes one when it first watches a
//! lock file: at the head of a queue, behind a holder that has no pipe, or as a holder after a
//! moment. Processes further back need none.

use std::collections::HashMap;
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::sync::Notify;

/// Whether waiters are woken on this system.
pub(crate) const IS_SUPPORTED: bool = true;

/// Stack of the thread, in bytes.
const STACK: usize = 64 << 10;

/// Marks the events of inotify. Pipes are numbered from 1.
const OF_INOTIFY: u64 = 0;

/// Returns why no file can be watched, with an instance and a watch of its own.
pub(crate) fn try_out(directory: &Path) -> Result<(), String> {
    let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
        .map_err(|why| format!("no instance can be had ({why})"))?;
    inotify::add_watch(&inotify, directory, WatchFlags::DELETE_SELF)
        .map(drop)
        .map_err(|why| format!("no watch can be had ({why})"))
}

/// A watch on a file or pipe whose change may free a lock. Dropping it ends the watch.
#[derive(Debug)]
pub(crate) struct FileWatch {
    watcher: &'static Watcher,
    target: Target,
    notify: Arc<Notify>,
}

/// The object that is watched.
#[derive(Debug)]
enum Target {
    File(i32),
    Pipe(u64, Arc<File>),
}

impl FileWatch {
    /// Watches a lock file: for each close and write by any process, for its deletion or
    /// replacement, and for a [notification](crate::lock_file::LockFile::notify_waiters). A holder
    /// that sees no queue writes its release and leaves the file open.
    ///
    /// Returns `None` if the file is missing, or if no more files can be watched. Then the waiter
    /// polls.
    pub(crate) fn on_lock(path: &Path) -> Option<Self> {
        let closed = WatchFlags::CLOSE_WRITE | WatchFlags::CLOSE_NOWRITE;
        let changed = WatchFlags::ATTRIB | WatchFlags::MODIFY | WatchFlags::DELETE_SELF;
        Self::on(path, closed | changed)
    }

    /// Watches the pipe of the process ahead, until that process has left.
    pub(crate) fn on_pipe(pipe: &Arc<File>) -> Option<Self> {
        let watcher = watcher()?;
        let notify = Arc::new(Notify::new());
        let mut subscriptions = watcher.subscriptions();
        subscriptions.last_pipe += 1;
        let number = subscriptions.last_pipe;
        // Once: a watch that is not dropped in time does not keep the thread busy.
        let events = EventFlags::IN | EventFlags::ONESHOT;
        epoll::add(&watcher.epoll, pipe, EventData::new_u64(number), events).ok()?;
        subscriptions.pipes.insert(number, Arc::clone(&notify));
        Some(Self { watcher, target: Target::Pipe(number, Arc::clone(pipe)), notify })
    }

    /// Watches a lock file for its deletion, replacement or move.
    pub(crate) fn on_removal(path: &Path) -> Option<Self> {
        let removed = WatchFlags::ATTRIB | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
        Self::on(path, removed)
    }

    /// Adds an inotify watch for `events`.
    fn on(path: &Path, events: WatchFlags) -> Option<Self> {
        let watcher = watcher()?;
        let inotify = watcher.inotify()?;
        let mut subscriptions = watcher.subscriptions();
        // Under the same lock as its removal, or a watch of the same file could go with another
        // one. Holders and waiters of one file have one watch, and it must keep the events of the
        // others.
        let events = events | WatchFlags::MASK_ADD | WatchFlags::DONT_FOLLOW;
        let watch = inotify::add_watch(inotify, path, events).ok()?;
        let notify = Arc::new(Notify::new());
        subscriptions.files.entry(watch).or_default().push(Arc::clone(&notify));
        Some(Self { watcher, target: Target::File(watch), notify })
    }

    /// Waits until the target changes. Changes since the creation of the watch count.
    pub(crate) async fn changed(&self) {
        self.notify.notified().await;
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        let mut subscriptions = self.watcher.subscriptions();
        match &self.target {
            Target::Pipe(number, pipe) => {
                subscriptions.pipes.remove(number);
                let _ = epoll::delete(&self.watcher.epoll, pipe);
            }
            Target::File(watch) => {
                let Some(notifies) = subscriptions.files.get_mut(watch) else { return };
                notifies.retain(|notify| !Arc::ptr_eq(notify, &self.notify));
                if notifies.is_empty() {
                    subscriptions.files.remove(watch);
                    if let Some(inotify) = self.watcher.inotify.get() {
                        // Fails if the file is gone, and the watch with it.
                        let _ = inotify::remove_watch(inotify, *watch);
                    }
                }
            }
        }
    }
}

/// The watches of this process.
#[derive(Debug)]
struct Watcher {
    epoll: OwnedFd,
    inotify: OnceLock<OwnedFd>,
    subscriptions: Mutex<Subscriptions>,
}

#[derive(Debug, Default)]
struct Subscriptions {
    files: HashMap<i32, Vec<Arc<Notify>>>,
    pipes: HashMap<u64, Arc<Notify>>,
    last_pipe: u64,
}

/// Serializes the creation of the thread and of the inotify instance.
static INITIALIZING: Mutex<()> = Mutex::new(());

/// Returns the watcher; `None` if this process gets no thread. The next caller tries again.
fn watcher() -> Option<&'static Watcher> {
    static WATCHER: OnceLock<Watcher> = OnceLock::new();

    if let Some(watcher) = WATCHER.get() {
        return Some(watcher);
    }
    let _guard = INITIALIZING.lock().unwrap_or_else(PoisonError::into_inner);
    if WATCHER.get().is_none() {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
        let listening = std::thread::Builder::new().name("lock-file".to_owned()).stack_size(STACK);
        let (sender, receiver) = std::sync::mpsc::channel::<&'static Watcher>();
        listening.spawn(move || receiver.recv().map(Watcher::run)).ok()?;
        let watcher = WATCHER.get_or_init(|| Watcher {
            epoll,
            inotify: OnceLock::new(),
            subscriptions: Mutex::default(),
        });
        sender.send(watcher).ok()?;
    }
    WATCHER.get()
}

impl Watcher {
    /// Returns the inotify instance; `None` if this process gets none. The next caller tries again.
    fn inotify(&self) -> Option<&OwnedFd> {
        if let Some(inotify) = self.inotify.get() {
            return Some(inotify);
        }
        let _guard = INITIALIZING.lock().unwrap_or_else(PoisonError::into_inner);
        if self.inotify.get().is_none() {
            let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
            let data = EventData::new_u64(OF_INOTIFY);
            epoll::add(&self.epoll, &inotify, data, EventFlags::IN).ok()?;
            let _ = self.inotify.set(inotify);
        }
        self.inotify.get()
    }

    /// Reads events until epoll fails.
    fn run(&self) {
        let mut events = Vec::with_capacity(16);
        loop {
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                // Cannot happen on a descriptor of this process alone. Waiters poll after a while.
                Err(_) => return,
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    OF_INOTIFY => self.read_inotify(),
                    pipe => {
                        if let Some(notify) = self.subscriptions().pipes.get(&pipe) {
                            notify.notify_one();
                        }
                    }
                }
            }
        }
    }

    /// Reads all pending inotify events.
    fn read_inotify(&self) {
        let Some(inotify) = self.inotify.get() else { return };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(inotify, &mut buffer);
        while let Ok(event) = reader.next() {
            self.notify_file(event.wd(), event.events());
        }
    }

    /// Notifies the watches of one file.
    fn notify_file(&self, watch: i32, events: ReadFlags) {
        let mut subscriptions = self.subscriptions();
        if events.contains(ReadFlags::QUEUE_OVERFLOW) {
            subscriptions.files.values().flatten().for_each(|notify| notify.notify_one());
        }
        if let Some(notifies) = subscriptions.files.get(&watch) {
            notifies.iter().for_each(|notify| notify.notify_one());
        }
        if events.contains(ReadFlags::IGNORED) {
            subscriptions.files.remove(&watch);
        }
    }

    fn subscriptions(&self) -> MutexGuard<'_, Subscriptions> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use super::*;

    /// Returns whether the watch was notified. The second watch is a barrier: all earlier events
    /// are read by then.
    async fn rang(watch: &FileWatch, dir: &Path) -> bool {
        let last = dir.join("last");
        File::create(&last).unwrap();
        let end = FileWatch::on_lock(&last).unwrap();
        drop(File::open(&last).unwrap());
        end.changed().await;
        tokio::time::timeout(Duration::ZERO, watch.changed()).await.is_ok()
    }

    #[tokio::test]
    async fn a_watch_fires_when_a_file_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n");
        assert!(FileWatch::on_lock(&path).is_none(), "there is nothing");
        let held = File::create(&path).unwrap();
        let (watch, other) =
            (FileWatch::on_lock(&path).unwrap(), FileWatch::on_lock(&path).unwrap());
        assert!(!rang(&watch, dir.path()).await);
        drop(held);
        assert!(rang(&watch, dir.path()).await && rang(&other, dir.path()).await);
        drop(other);
        assert!(!rang(&watch, dir.path()).await);
        // As flock(1) has it open.
        drop(File::open(&path).unwrap());
        assert!(
            rang(&watch, dir.path()).await,
            "the end of the other watch was not that of this one"
        );
        std::fs::write(dir.path().join("new"), "").unwrap();
        std::fs::rename(dir.path().join("new"), &path).unwrap();
        assert!(rang(&watch, dir.path()).await, "it was replaced");
    }

    #[tokio::test]
    async fn a_watch_can_be_notified_while_others_have_the_file_open() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n");
        let directory = crate::directory::Directory::open(dir.path()).unwrap();
        let file = crate::lock_file::LockFile::draft(&directory, &path).unwrap();
        let watch = FileWatch::on_lock(&path).unwrap();
        assert!(!rang(&watch, dir.path()).await);
        file.notify_waiters();
        assert!(rang(&watch, dir.path()).await);
    }

    #[tokio::test]
    async fn a_pipe_fires_when_its_last_writer_is_gone() {
        let (reader, writer) = std::io::pipe().unwrap();
        let pipe = Arc::new(File::from(OwnedFd::from(reader)));
        let other = writer.try_clone().unwrap();
        let watch = FileWatch::on_pipe(&pipe).unwrap();
        let dir = tempfile::tempdir().unwrap();
        drop(writer);
        assert!(!rang(&watch, dir.path()).await, "a child has it too");
        drop(other);
        watch.changed().await;
        drop(watch);
        FileWatch::on_pipe(&pipe).unwrap().changed().await;
    }
}
