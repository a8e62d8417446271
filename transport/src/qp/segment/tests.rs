//! Tests of `segment.rs`, by part.

use super::*;

mod costs;
mod segmentation;
