//! `libroxe.so`: the C interface, serving as both `libibverbs.so.1` and `librdmacm.so.1`.
//!
//! Every function is a translation: C arguments in, one call of the provider, its result out in the
//! convention that the man page of the call promises. What can go wrong is decided elsewhere; what
//! lives here is the shape of the interface:
//!
//! - the structures of the C headers, and the proof that they are laid out as in C: the package
//!   `roxe-abi`
//! - which symbols there are, under which version; which only answer EOPNOTSUPP: `exports.rs`,
//!   `exports.map`; `unsupported.rs`; what the loader calls: `load.rs`
//! - how a result becomes a return value and `errno`: `errno.rs`
//! - what a handle is, and what lies behind it: `object.rs`, `objects.rs`; memory from the
//!   program's allocators: `allocator.rs`
//! - opening a device; the functions that the headers call through a context: `device.rs`,
//!   `context.rs`
//! - a control call: the file of its object: `domain.rs`, `memory.rs`, `buffer.rs`, `window.rs`,
//!   `dm.rs`, `ah.rs`, `cq.rs`, `srq.rs`, `qp.rs`, `wq.rs`, `xrc.rs`, `flow.rs`, `counters.rs`,
//!   `query.rs`; by extended attributes: `create_ex.rs`
//! - posting and polling: `data_path.rs`; `qp_ex.rs` with `wr_batch.rs`; `cq_ex.rs`; tags:
//!   `tag_matching.rs`; under ThreadSanitizer: `tsan.rs`
//! - waiting for events: `event.rs`, `wait.rs`
//! - librdmacm: `rdmacm.rs`, `rdmacm/`; its sockets: `rsocket.rs`, `rsocket/`
//!
//! A file imports only files below it: an object's type lies in `objects.rs`, below all that use
//! it, and the table of functions of a context in `context.rs`, above them.
//!
//! `unsafe` is allowed here. The reasons given at each block rest on three promises that every
//! verbs program makes: pointers are NULL or valid for their type, an object is not destroyed while
//! another call uses it, and handles of the data path are alive. Control calls check handles all
//! the same.

mod advise;
mod ah;
mod allocator;
mod buffer;
mod context;
mod counters;
mod cq;
mod cq_ex;
mod create_ex;
mod data_path;
mod destroyed_blocks;
mod device;
mod dm;
mod domain;
mod ece;
mod enum_strs;
mod errno;
mod event;
mod exports;
mod flow;
mod garbage;
mod import;
mod load;
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
mod tag_matching;
#[cfg(test)]
mod tests;
mod tsan;
mod unsupported;
mod uverbs_convert;
mod wait;
mod wallclock;
mod window;
mod wq;
mod wr_batch;
mod xrc;

use roxe_abi as abi;
