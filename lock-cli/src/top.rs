//! `lockctl top`: the held locks as a table, again and again.

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::pin;
use std::time::Duration;

use lock_any::backend::{Holder, Listed};
use lock_any::clock::{Moment, sleep, sleep_until};
use lock_any::{Error, Locker};
use nix::sys::signal::Signal;

use crate::cli::Top;
use crate::connect::connect_to_list;
use crate::exit::{Exit, Failure, chain};
use crate::inspect::{describe, for_each_page, scope};
use crate::output::{print, rounded};
use crate::screen::{self, Screen};
use crate::signals::{ENDING, Signals};

/// A list that takes long is repeated after so many times its duration: on some servers it costs
/// others time.
const PAUSE_FACTOR: u32 = 10;

/// A list that takes longer is reported: the table may be wrong by now.
const LATE: Duration = Duration::from_secs(5);

const TITLES: [&str; 5] = ["LOCK", "HELD FOR", "LEASE LEFT", "WAITERS", "HOLDER"];

pub(crate) async fn top(url: &str, args: &Top) -> Result<Exit, Failure> {
    let locks = connect_to_list(url).await?;
    let scope = scope(&locks, url, &args.prefix);
    if args.once {
        return snapshot(&locks, &scope, args).await;
    }
    let Some(screen) = Screen::open()? else {
        let message = "top needs a terminal for input and output; write --once for a snapshot";
        return Err(Failure::usage(message));
    };
    // Only now: until here, they end lockctl.
    let others = [Signal::SIGWINCH, Signal::SIGCONT, Signal::SIGTSTP];
    let mut signals = Signals::catch(ENDING)?;
    signals.catch_more(&others)?;
    let page = Ok(Vec::new());
    let mut live = Live { locks: &locks, args, scope, screen, signals, page, asked: None };
    live.run().await
}

/// Prints all held locks.
async fn snapshot(locks: &Locker, scope: &str, args: &Top) -> Result<Exit, Failure> {
    let mut listed = Vec::new();
    for_each_page(locks, &args.prefix, async |page| {
        listed.extend_from_slice(page);
        Ok(ControlFlow::Continue(()))
    })
    .await?;
    let lines = table(&listed);
    print(&format!("{}\n\n{}\n", heading(listed.len(), false, scope), lines.join("\n")))?;
    Ok(Exit::SUCCESS)
}

/// The table on a terminal.
struct Live<'a> {
    locks: &'a Locker,
    args: &'a Top,
    scope: String,
    screen: Screen,
    signals: Signals,
    /// The last answer. With an error, the table before it is gone: it may be wrong by now.
    page: Result<Vec<Listed>, Error>,
    /// Since when a list is awaited.
    asked: Option<Moment>,
}

impl Live<'_> {
    async fn run(&mut self) -> Result<Exit, Failure> {
        let (locks, args) = (self.locks, self.args);
        let mut is_first = true;
        loop {
            let began = Moment::now();
            // More than there is room for, to know whether there are more.
            let list = locks.list(&args.prefix, None, screen::size().0);
            self.asked = Some(began);
            let Some(page) = self.unless_quit(list).await? else { return Ok(Exit::SUCCESS) };
            self.asked = None;
            // A refusal at the start is final. Later, an outage is shown until it ends.
            self.page = if is_first { Ok(page?) } else { page };
            is_first = false;
            self.draw()?;
            let took = Moment::now().saturating_since(began);
            let pause = sleep_until(began + args.interval.max(took * PAUSE_FACTOR));
            if self.unless_quit(pause).await?.is_none() {
                return Ok(Exit::SUCCESS);
            }
        }
    }

    /// Waits for some work, and reacts to keys and signals meanwhile. Returns `None` if a key ends
    /// lockctl.
    async fn unless_quit<T>(
        &mut self,
        work: impl Future<Output = T>,
    ) -> Result<Option<T>, Failure> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Ok(Some(done)),
                key = self.screen.key() => {
                    if matches!(key, Some(b'q' | b'Q') | None) {
                        return Ok(None);
                    }
                }
                signal = self.signals.next() => self.handle(signal)?,
                () = sleep(Duration::from_secs(1)) => {
                    if self.silence().is_some() {
                        self.draw()?;
                    }
                }
            }
        }
    }

    /// Returns how long an answer is late, if that is long enough to say.
    fn silence(&self) -> Option<Duration> {
        self.asked.map(|asked| Moment::now().saturating_since(asked)).filter(|late| *late >= LATE)
    }

    fn handle(&self, signal: Signal) -> Result<(), Failure> {
        match signal {
            Signal::SIGTSTP => Ok(()),
            Signal::SIGWINCH => self.draw(),
            Signal::SIGCONT => {
                self.screen.enter()?;
                self.draw()
            }
            ending => Err(Failure::signalled(ending)),
        }
    }

    fn draw(&self) -> Result<(), Failure> {
        let (height, width) = screen::size();
        let mut lines = match &self.page {
            Ok(listed) => {
                let room = height.saturating_sub(3);
                let shown = &listed[..listed.len().min(room)];
                let mut lines = vec![heading(shown.len(), listed.len() > room, &self.scope)];
                lines.push(String::new());
                lines.extend(table(shown));
                lines
            }
            Err(error) => {
                let why: Vec<char> = chain(error).escape_debug().collect();
                let mut lines = vec!["no answer".to_owned(), String::new()];
                lines.extend(why.chunks(width.max(1)).map(|line| line.iter().collect()));
                lines
            }
        };
        if let Some(first) = lines.first_mut() {
            if let Some(silence) = self.silence() {
                let silence = rounded(Duration::from_secs(silence.as_secs()));
                first.insert_str(0, &format!("no answer for {silence}; before: "));
            }
            first.push_str("; q quits");
        }
        lines.truncate(height);
        let cut = lines.iter().map(|line| line.chars().take(width).collect());
        self.screen.show(&cut.collect::<Vec<_>>())
    }
}

fn heading(locks: usize, are_more: bool, scope: &str) -> String {
    let number = match (locks, are_more) {
        (1, false) => "1 lock is held".to_owned(),
        (locks, false) => format!("{locks} locks are held"),
        (locks, true) => format!("the first {locks} of the held locks"),
    };
    format!("{number}{scope}")
}

/// Returns the lines of the table, with its titles.
fn table(listed: &[Listed]) -> Vec<String> {
    let rows = listed.iter().map(row);
    let rows: Vec<_> = std::iter::once(TITLES.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; 4] = std::array::from_fn(|column| width(column).unwrap_or_default());
    let line = |row: &[String; 5]| {
        let [name, held, left, waiting, holder] = row;
        let [w0, w1, w2, w3] = widths;
        format!("{name:<w0$}  {held:>w1$}  {left:>w2$}  {waiting:>w3$}  {holder}")
    };
    rows.iter().map(line).collect()
}

/// Returns a line of the table. Names and labels are escaped: others have written them.
fn row(listed: &Listed) -> [String; 5] {
    let state = &listed.state;
    let seconds = |span: Option<Duration>| match span {
        Some(span) => rounded(Duration::from_secs(span.as_secs())).to_string(),
        None => "-".to_owned(),
    };
    // Of several holders, the first is the oldest.
    let first = state.holders.first();
    let holders = state.holders.iter().map(|holder: &Holder| describe(holder, false));
    [
        listed.name.to_string(),
        seconds(first.and_then(|holder| holder.held_for)),
        seconds(first.and_then(|holder| holder.expires_in)),
        state.waiting.map_or_else(|| "-".to_owned(), |waiting| waiting.to_string()),
        holders.collect::<Vec<_>>().join("; "),
    ]
}

#[cfg(test)]
mod tests {
    use lock_any::Label;
    use lock_any::backend::LockState;

    use super::*;

    fn listed(name: &str, label: &str, waiting: Option<u64>) -> Listed {
        let mut holder = Holder::new(None);
        holder.label = Some(Label::new(label));
        holder.held_for = Some(Duration::from_millis(83_500));
        Listed::new(name.try_into().unwrap(), LockState::new(vec![holder], waiting))
    }

    #[test]
    fn columns_are_aligned_and_unknown_values_are_dashes() {
        let lines = table(&[listed("a", "web:1", Some(12)), listed("long name", "x", None)]);
        let holder = "(a client without an owner id)";
        assert_eq!(
            lines,
            [
                "LOCK         HELD FOR  LEASE LEFT  WAITERS  HOLDER".to_owned(),
                format!("\"a\"            1m 23s           -       12  web:1 {holder}"),
                format!("\"long name\"    1m 23s           -        -  x {holder}"),
            ]
        );
    }

    #[test]
    fn names_and_labels_cannot_control_the_terminal() {
        let [_, line] =
            table(&[listed("\u{1b}[2J\n\u{202e}", "a\u{9b}2J", None)]).try_into().unwrap();
        assert!(!line.chars().any(|char| char.is_control() || char == '\u{202e}'), "{line:?}");
    }

    #[test]
    fn the_heading_says_how_many_are_shown() {
        assert_eq!(heading(1, false, ""), "1 lock is held");
        assert_eq!(heading(0, false, ""), "0 locks are held");
        assert_eq!(heading(7, true, " here"), "the first 7 of the held locks here");
    }
}
