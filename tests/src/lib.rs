//! Shared code of the cross-process tests and benchmarks: builds the product, runs programs in
//! pairs, and checks their output. Does not access the product's internals.

pub mod agent;
pub mod allocator;
pub mod build;
pub mod cc;
pub mod files;
pub mod guest;
pub mod junit;
pub mod matrix;
pub mod measure;
pub mod misuse;
pub mod pair;
pub mod parallel;
pub mod perftest;
pub mod pyverbs;
pub mod rdmacm;
pub mod report;
pub mod tshark;
pub mod unittest;
pub mod veth;
