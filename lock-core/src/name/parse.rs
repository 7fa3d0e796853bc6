//! The checks that make a lock name of a text.

use std::borrow::Cow;
use std::str::FromStr;
use std::sync::Arc;

use super::LockName;
use crate::error::{Error, ErrorKind};

impl LockName {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it is empty or longer than [`MAX_LEN`](Self::MAX_LEN).
    pub fn new(name: impl AsRef<str>) -> Result<Self, Error> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "a lock name must not be empty"));
        }
        if name.len() > Self::MAX_LEN {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "a lock name has at most {} bytes, this one has {}",
                    Self::MAX_LEN,
                    name.len()
                ),
            ));
        }
        Ok(Self(name.into()))
    }
}

impl FromStr for LockName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::new(name)
    }
}

impl TryFrom<&str> for LockName {
    type Error = Error;

    fn try_from(name: &str) -> Result<Self, Error> {
        Self::new(name)
    }
}

impl TryFrom<String> for LockName {
    type Error = Error;

    fn try_from(name: String) -> Result<Self, Error> {
        Self::new(name)
    }
}

impl TryFrom<&String> for LockName {
    type Error = Error;

    fn try_from(name: &String) -> Result<Self, Error> {
        Self::new(name)
    }
}

impl TryFrom<Cow<'_, str>> for LockName {
    type Error = Error;

    fn try_from(name: Cow<'_, str>) -> Result<Self, Error> {
        Self::new(name)
    }
}

impl TryFrom<Box<str>> for LockName {
    type Error = Error;

    fn try_from(name: Box<str>) -> Result<Self, Error> {
        Self::new(name)
    }
}

impl TryFrom<Arc<str>> for LockName {
    type Error = Error;

    fn try_from(name: Arc<str>) -> Result<Self, Error> {
        Self::new(name)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for LockName {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <Cow<'de, str>>::deserialize(deserializer)?;
        Self::new(text).map_err(serde::de::Error::custom)
    }
}
