//! `libroxe.so`: the C interface, serving as both `libibverbs.so.1` and `librdmacm.so.1`.
//!
//! Every function is a translation: C arguments in, one call of the provider, its result out in the convention that the
//! man page of the call promises. What can go wrong is decided elsewhere; what lives here is the shape of the interface:
//!
//! - `abi.rs`, `abi_layout.rs`: the structures of `infiniband/verbs.h` and the proof that they are laid out as in C;
//! - `exports.rs` with `exports.map`: the dynamic symbols and their version nodes; `unsupported.rs`: EOPNOTSUPP for those
//!   that are not implemented; `wallclock.rs`: timestamps as time of day;
//! - `errno.rs`: results to return values, panics to EIO; `sleep.rs`: waiting for events; `object.rs`: the objects that
//!   programs hold pointers to, and `home.rs`: memory of their own for them;
//! - `open.rs`: the functions that are reached through a context; `create_ex.rs`: which kind of queue extended attributes mean;
//! - one file per kind of object, `data.rs` with `qp_ex.rs` and `cq_ex.rs` for what runs per message, and `ordered.rs` in front
//!   of them where ThreadSanitizer watches.
//!
//! This is a room where `unsafe` is allowed. The reasons given at each block rest on three promises that every verbs
//! program makes: pointers are NULL or valid for their type, an object is not destroyed while another call uses it, and
//! handles of the data path are alive. Control calls check handles all the same.

mod abi;
mod abi_layout;
mod advise;
mod ah;
mod context;
mod counters;
mod cq;
mod cq_ex;
mod create_ex;
mod data;
mod device;
mod dm;
mod domain;
mod ece;
mod errno;
mod event;
mod exports;
mod flow;
mod home;
mod import;
mod lock;
mod marshall;
mod memory;
mod object;
mod open;
mod ordered;
mod qp;
mod qp_ex;
mod query;
mod rate;
mod rdmacm;
mod rsocket;
mod sleep;
mod srq;
mod tags;
#[cfg(test)]
mod tests;
mod text;
mod unsupported;
mod wallclock;
mod window;
mod wq;
mod xrc;
