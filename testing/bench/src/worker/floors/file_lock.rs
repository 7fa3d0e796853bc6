//! `std::fs::File::lock` and `unlock`, which are flock(2). The files stay open and are not deleted.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lock_bench_worker::Lib;

pub(crate) struct FileLock(PathBuf);

impl FileLock {
    pub(crate) fn at(url: &str) -> Result<Self, String> {
        directory(url).map(Self)
    }
}

/// Returns the directory for the files of floors, beside those that are measured.
pub(super) fn directory(url: &str) -> Result<PathBuf, String> {
    let path = url.strip_prefix("file://").and_then(|rest| rest.split('?').next());
    let directory = path.ok_or("this floor works on file:///directory")?;
    let directory = PathBuf::from(directory).join("floor");
    std::fs::create_dir_all(&directory).map_err(|e| e.to_string())?;
    Ok(directory)
}

impl Lib for FileLock {
    /// An open file has at most one lock: each waiter opens it anew.
    type Lock = LazyFile;
    type Held = Arc<File>;

    fn lock(&self, name: &str) -> Result<Self::Lock, String> {
        Ok(LazyFile { path: self.0.join(name.replace('/', "_")), file: std::sync::OnceLock::new() })
    }

    async fn acquire(&self, lock: &Self::Lock, _ttl: Duration) -> Result<Self::Held, String> {
        let file = lock.open()?;
        if file.try_lock().is_ok() {
            return Ok(file);
        }
        let waiting = Arc::clone(&file);
        let waited = tokio::task::spawn_blocking(move || waiting.lock()).await;
        waited.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
        Ok(file)
    }

    async fn release(&self, held: Self::Held) -> Result<(), String> {
        held.unlock().map_err(|e| e.to_string())
    }
}

/// A file that each clone opens at its first use.
pub(crate) struct LazyFile {
    path: PathBuf,
    file: std::sync::OnceLock<Arc<File>>,
}

impl LazyFile {
    fn open(&self) -> Result<Arc<File>, String> {
        if let Some(file) = self.file.get() {
            return Ok(Arc::clone(file));
        }
        let mut options = File::options();
        let file = options.create(true).truncate(false).write(true).open(&self.path);
        let file = Arc::new(file.map_err(|e| e.to_string())?);
        Ok(Arc::clone(self.file.get_or_init(|| file)))
    }
}

impl Clone for LazyFile {
    fn clone(&self) -> Self {
        Self { path: self.path.clone(), file: std::sync::OnceLock::new() }
    }
}
