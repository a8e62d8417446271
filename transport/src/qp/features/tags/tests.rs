//! Tests of `tags.rs`, by part.

use super::*;

mod list;
mod messages;
