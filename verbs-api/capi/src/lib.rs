//! `libroxe.so`: the C interface, serving as both `libibverbs.so.1` and `librdmacm.so.1`.
//!
//! Each function converts C arguments, makes one call of the provider, and returns what the manual
//! page of its name promises. Begin with `exports.rs` (symbols), `errno.rs` (results), `object.rs`
//! and `objects.rs` (handles) and `data_path.rs` (post and poll). Control calls are in the file of
//! their object. The C structures are in the package `roxe-abi`.
//!
//! The SAFETY reasons rest on three promises that every verbs program makes: a pointer is NULL or
//! valid for its type during the call, no object is destroyed while another call uses it, and
//! handles that are passed to the data path are alive. Control calls check their handles
//! nevertheless.

mod ah;
mod context;
mod cq;
mod cq_ex;
mod data_path;
mod device;
mod domain;
mod enum_strs;
mod errno;
mod event;
mod exports;
mod faults;
mod flow;
mod lock;
mod memory;
mod object;
mod objects;
mod qp;
mod qp_ex;
mod query;
mod rate;
mod rdmacm;
mod rsocket;
mod srq;
#[cfg(test)]
mod tests;
mod tsan;
mod undefined;
mod uverbs_convert;
mod wallclock;
mod wq;
mod wr_batch;

use roxe_abi as abi;
