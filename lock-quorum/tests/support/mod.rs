//! Quorums for the tests.
#![allow(dead_code, reason = "each test uses a part of it")]

pub(crate) mod harness;
