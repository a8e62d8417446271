//! Tests of `unreliable.rs`, by part.

use super::*;

mod datagrams;
mod sending;
