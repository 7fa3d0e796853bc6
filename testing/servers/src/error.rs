//! The error of a server that does not start.

use std::fmt;

/// The reason why a server could not be started.
#[derive(Debug)]
pub struct ServerError(String);

impl ServerError {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ServerError {}

/// Checks that `program` is in the `PATH`; `package` is the Debian package that has it.
pub(super) fn require(program: &str, package: &str) -> Result<(), ServerError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|directory| directory.join(program).is_file()) {
        return Ok(());
    }
    Err(ServerError(format!("{program} is missing: run ./test, or apt-get install {package}")))
}
