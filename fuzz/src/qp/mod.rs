//! Queue pairs whose work, peer and network the input plays.
//!
//! One target per role, each with the strongest judge that role allows: [`responder()`] has a model
//! of the memory it guards, [`requester()`] one of what may complete, [`hostile()`] sends both
//! kinds and strangers, [`qp_pair()`] lets two meet.

mod alone;
mod headers;
mod hostile;
mod pair;
mod requester;
mod responder;

pub use hostile::hostile;
pub use pair::qp_pair;
pub use requester::requester;
pub use responder::responder;
