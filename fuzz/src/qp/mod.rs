//! Queue pairs whose work, peer and network come from the input.
//!
//! One target per role, each with the strictest model for it: [`responder()`] models the memory,
//! [`requester()`] the completions, [`hostile()`] sends packets of peers and strangers in any
//! state, [`qp_pair()`] connects two queue pairs.

mod headers;
mod hostile;
mod lone_qp;
mod pair;
mod requester;
mod responder;

pub use hostile::hostile;
pub use pair::qp_pair;
pub use requester::requester;
pub use responder::responder;
