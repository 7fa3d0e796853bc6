//! The whole terminal as a screen: single keys, and lines that replace those before.
//!
//! The terminal is restored when the screen is dropped, and by [`restore`] where the process ends
//! without that.

use std::io::{IsTerminal as _, Read as _, stdin, stdout};
use std::sync::{Mutex, PoisonError};

use nix::sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, Termios};
use nix::sys::termios::{tcgetattr, tcsetattr};
use tokio::sync::mpsc;

use crate::exit::Failure;
use crate::output;

/// The other screen of the terminal, without a cursor, and without a new line for the rest of one
/// that is too long.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";
const HOME: &str = "\x1b[H";
const ERASE_LINE: &str = "\x1b[K";
const ERASE_BELOW: &str = "\x1b[J";

/// The modes of the terminal before the screen.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// The terminal, as long as it is a screen.
pub(crate) struct Screen {
    keys: mpsc::UnboundedReceiver<u8>,
}

impl Screen {
    /// Takes the terminal. `None` if stdin or stdout is none.
    pub(crate) fn open() -> Result<Option<Self>, Failure> {
        if !(stdin().is_terminal() && stdout().is_terminal()) {
            return Ok(None);
        }
        let before = tcgetattr(stdin()).map_err(|error| unusable(&error.into()))?;
        *saved() = Some(before);
        let (key, keys) = mpsc::unbounded_channel();
        let screen = Self { keys };
        screen.enter()?;
        // Not on a thread of the runtime, which cannot stop it.
        let reading = std::thread::Builder::new().spawn(move || {
            let mut stdin = stdin().lock();
            let mut byte = [0];
            while let Ok(1) = stdin.read(&mut byte) {
                if key.send(byte[0]).is_err() {
                    break;
                }
            }
        });
        reading.map_err(|error| unusable(&error))?;
        Ok(Some(screen))
    }

    /// Sets the modes, also again after another program has changed them.
    pub(crate) fn enter(&self) -> Result<(), Failure> {
        let Some(mut modes) = saved().clone() else { return Ok(()) };
        modes.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
        modes.control_chars[SpecialCharacterIndices::VMIN as usize] = 1;
        modes.control_chars[SpecialCharacterIndices::VTIME as usize] = 0;
        // A stopped process could not restore the terminal.
        modes.control_chars[SpecialCharacterIndices::VSUSP as usize] = 0;
        tcsetattr(stdin(), SetArg::TCSANOW, &modes).map_err(|error| unusable(&error.into()))?;
        output::write(ENTER).map_err(|error| output::unwritable(&error))
    }

    /// Shows lines from the top, and erases the rest.
    pub(crate) fn show(&self, lines: &[String]) -> Result<(), Failure> {
        let lines = lines.join(&format!("{ERASE_LINE}\r\n"));
        let text = format!("{HOME}{lines}{ERASE_LINE}{ERASE_BELOW}");
        output::write(&text).map_err(|error| output::unwritable(&error))
    }

    /// Waits for the next key; `None` if the terminal is gone.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no key.
    pub(crate) async fn key(&mut self) -> Option<u8> {
        self.keys.recv().await
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Returns the numbers of lines and columns.
pub(crate) fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(stdout()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => {
            (usize::from(size.ws_row), usize::from(size.ws_col))
        }
        _ => (24, 80),
    }
}

/// Restores the terminal, if there is a screen.
pub(crate) fn restore() {
    if let Some(before) = saved().take() {
        let _ = output::write(LEAVE);
        let _ = tcsetattr(stdin(), SetArg::TCSANOW, &before);
    }
}

fn saved() -> std::sync::MutexGuard<'static, Option<Termios>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unusable(error: &std::io::Error) -> Failure {
    Failure::internal("cannot use the terminal; write --once", error)
}
