//! `libroxe.so`: the C interface, serving as both `libibverbs.so.1` and `librdmacm.so.1`.
//!
//! Every function is a translation: C arguments in, one call of the provider, its result out in the
//! convention that the man page of the call promises. What can go wrong is decided elsewhere; what
//! lives here is the shape of the interface:
//!
//! - the structures of the C headers, and the proof that they are laid out as in C: the package
//!   `roxe-abi`
//! - which symbols there are, under which version; which only answer EOPNOTSUPP; what the loader
//!   calls: `exports.rs`, `exports.map`
//! - how a result becomes a return value and `errno`: `errno.rs`
//! - what a handle is, and what lies behind it: `object.rs`, with memory from the program's
//!   allocators, and `objects.rs`
//! - opening a device; the functions that the headers call through a context: `device.rs`,
//!   `context.rs`
//! - a control call: the file of its object: `domain.rs`, `memory.rs`, `window.rs`, `dm.rs`,
//!   `ah.rs`, `cq.rs`, `srq.rs`, `qp.rs`, `wq.rs`, `flow.rs`, `query.rs`
//! - posting and polling: `data_path.rs`; `qp_ex.rs` with `wr_batch.rs`; `cq_ex.rs`; under
//!   ThreadSanitizer: `tsan.rs`
//! - waiting for events: `event.rs`
//! - librdmacm: `rdmacm.rs`, `rdmacm/`; its sockets: `rsocket.rs`
//!
//! A file imports only files below it: an object's type lies in `objects.rs`, below all that use
//! it, and the table of functions of a context in `context.rs`, above them.
//!
//! `unsafe` is allowed here. The reasons given at each block rest on three promises that every
//! verbs program makes: pointers are NULL or valid for their type, an object is not destroyed while
//! another call uses it, and handles of the data path are alive. Control calls check handles all
//! the same.

mod ah;
mod context;
mod cq;
mod cq_ex;
mod data_path;
mod device;
mod dm;
mod domain;
mod enum_strs;
mod errno;
mod event;
mod exports;
mod flow;
mod garbage;
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
mod uverbs_convert;
mod wallclock;
mod window;
mod wq;
mod wr_batch;

use roxe_abi as abi;
