//! The options of a run that its measurements read.

use std::fmt::Display;
use std::str::FromStr;

use clap::Args;

use super::peer::Lib;

#[derive(Args, Debug)]
pub(crate) struct Settings {
    /// The number of measurements of each time, 1 to 1000
    #[arg(long, default_value = "5", value_parser = within(1_usize, 1000), allow_negative_numbers = true)]
    pub(crate) rounds: usize,
    /// The duration of one measurement of pairs, 0.01 to 30
    #[arg(long, value_name = "SECONDS", default_value_t = 0.25, value_parser = within(0.01_f64, 30.0))]
    #[arg(allow_negative_numbers = true)]
    pub(crate) seconds: f64,
    /// The delay of the relay in each direction, which is also tripled, 1 to 500
    #[arg(long, value_name = "MS", default_value_t = 10, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=500))]
    pub(crate) delay: u64,
    /// Measures only figures that are the same on every machine: requests, bytes, round trips. For
    /// CI
    #[arg(long)]
    pub(crate) exact: bool,
    /// Adds a library: a program that speaks the protocol, with the URL as its last argument
    #[arg(long, value_name = "NAME=COMMAND", value_parser = Lib::foreign)]
    pub(crate) peer: Vec<Lib>,
    /// Includes the locks of other projects that are installed (testing/fleet/setup). For
    /// each missing one, the run prints how to install it
    #[arg(long)]
    pub(crate) others: bool,
    /// Worker threads of our own workers; 0: everything on one thread
    #[arg(long, default_value_t = 0)]
    pub(crate) threads: usize,
    /// Lets the scheduler choose the processors [default: one for the server, the others for the
    /// workers]
    #[arg(long)]
    pub(crate) no_pin: bool,
    /// Runs the server and the workers on one processor. For one task, which works in turns with
    /// the server: no request wakes an idle processor
    #[arg(long, conflicts_with = "no_pin")]
    pub(crate) one_core: bool,
    /// The limit for the share of all processors that other processes use, in per cent. A
    /// measurement above it is discarded
    #[arg(long, value_name = "PERCENT", default_value_t = 15.0, value_parser = within(0.0_f64, 100.0))]
    #[arg(allow_negative_numbers = true)]
    pub(crate) foreign: f64,
    /// Makes the order of measurements repeatable [default: random]
    #[arg(long)]
    pub(crate) seed: Option<u64>,
}

/// Returns a parser of numbers within the bounds, which rejects NaN.
fn within<T>(least: T, most: T) -> impl Fn(&str) -> Result<T, String> + Clone
where
    T: Copy + FromStr + PartialOrd + Display,
{
    move |text| {
        let number = text.parse().ok().filter(|number| (&least..=&most).contains(&number));
        number.ok_or_else(|| format!("a number from {least} to {most} is needed"))
    }
}
