//! The options of a run that its measurements read.

use std::fmt::Display;
use std::str::FromStr;

use clap::Args;

use super::peer::Lib;

#[derive(Args, Debug)]
pub(crate) struct Settings {
    /// How often each time is measured, 1 to 1000
    #[arg(long, default_value = "5", value_parser = rounds, allow_negative_numbers = true)]
    pub(crate) rounds: usize,
    /// How long one measurement of pairs takes, 0.01 to 30
    #[arg(long, value_name = "SECONDS", default_value_t = 0.25, value_parser = seconds)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) seconds: f64,
    /// What the relay adds each way, and three times as much, 1 to 500
    #[arg(long, value_name = "MS", default_value_t = 10, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=500))]
    pub(crate) delay: u64,
    /// Only what is the same on every machine: requests, bytes, round trips. For CI
    #[arg(long)]
    pub(crate) exact: bool,
    /// Another library: a program that speaks the protocol, which gets the URL as its last argument
    #[arg(long, value_name = "NAME=COMMAND", value_parser = Lib::foreign)]
    pub(crate) peer: Vec<Lib>,
    /// Locks of other projects, too, as far as they are installed (testing/bench/peers/setup). Those that are missing are
    /// named with what installs them
    #[arg(long)]
    pub(crate) others: bool,
    /// Worker threads of our own workers; 0: everything on one thread
    #[arg(long, default_value_t = 0)]
    pub(crate) threads: usize,
    /// Leaves it to the scheduler which processor runs what
    #[arg(long)]
    pub(crate) no_pin: bool,
    /// What others may take of all processors during a measurement, in per cent, before it is thrown away
    #[arg(long, value_name = "PERCENT", default_value_t = 15.0, value_parser = percent)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) foreign: f64,
    /// The order of measurements repeats with it [default: at random]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
}

fn rounds(text: &str) -> Result<usize, String> {
    within(text, 1, 1000)
}

fn seconds(text: &str) -> Result<f64, String> {
    within(text, 0.01, 30.0)
}

fn percent(text: &str) -> Result<f64, String> {
    within(text, 0.0, 100.0)
}

/// Not outside of what makes sense, and not "not a number".
fn within<T: Copy + FromStr + PartialOrd + Display>(
    text: &str,
    least: T,
    most: T,
) -> Result<T, String> {
    let number = text.parse().ok().filter(|number| (&least..=&most).contains(&number));
    number.ok_or_else(|| format!("a number from {least} to {most} is needed"))
}
