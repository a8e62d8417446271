//! [`Id`]: one end of a connection, a listener, or a user of datagram services; what it is made of
//! is in `state`.

mod connect;
mod life;
mod listen;
mod pair;
mod resolve;
mod state;

pub use state::{Channel, Event, Id};
pub(in crate::cm) use state::{Inner, Link, Side, State, refused};
