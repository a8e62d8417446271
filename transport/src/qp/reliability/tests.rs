//! Tests of `reliability.rs`, by part.

use super::*;

mod retry;
mod unasked;
