//! Every fuzz target on its corpus, and where the corpora come from.

mod seeds;
mod targets;
