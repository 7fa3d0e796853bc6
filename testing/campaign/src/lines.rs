//! Files of JSON lines. A write replaces the whole file.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Serialize, de::DeserializeOwned};

/// Reads all lines. Returns none if the file does not exist.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> io::Result<Vec<T>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let parse = |line| {
        serde_json::from_str(line)
            .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
    };
    text.lines().map(parse).collect()
}

/// Writes all lines. If that fails, the old file is left as it was.
pub(crate) fn write<T: Serialize>(path: &Path, lines: &[T]) -> io::Result<()> {
    let mut text = String::new();
    for line in lines {
        text += &serde_json::to_string(line)?;
        text.push('\n');
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let unfinished = path.with_extension("unfinished");
    fs::write(&unfinished, text)?;
    fs::rename(unfinished, path)
}
