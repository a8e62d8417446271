//! Runs every fuzz target on its corpus, and checks the seeds of the corpora.

mod seeds;
mod targets;
