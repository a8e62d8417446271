//! Tests of `congestion.rs`, by part.

use super::*;

mod pacer;
mod rate;
