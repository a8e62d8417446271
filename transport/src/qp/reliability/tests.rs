//! Tests of `reliability.rs`, by part.

use super::*;

mod ack_pacing;
mod retry;
