//! Why a run ended before its end.

use std::fmt::Display;

pub(crate) type Result<T, E = RunError> = std::result::Result<T, E>;

/// Why a run ended before its end.
#[derive(Debug)]
pub(crate) enum RunError {
    /// A promise was broken during the measurement: the figures are meaningless.
    Void(String),
    /// A library does not support the request.
    Unsupported(String),
    /// Any other error.
    Failed(String),
}

impl RunError {
    /// Returns a function that puts `context` before the text of an error.
    pub(crate) fn context<E: Display>(context: &str) -> impl Fn(E) -> Self {
        move |error| Self::Failed(format!("{context}: {error}"))
    }
}
