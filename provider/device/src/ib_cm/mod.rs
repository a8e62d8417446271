//! What connections stand on (`ib_cm` of the kernel): one connection manager per device and
//! process, and which program has which port.
//!
//! `agent` takes what the engine hands up, and runs the machine of [`roxe_transport::cm`] under its
//! lock, with a `session` for whoever has the lock; messages leave by `mad_sender`. `peer_liveness`
//! ends what is left of processes that died, `unanswered` requests to hosts without a card, `ports`
//! gives out ports, `interface_change` tells ids of changes of their interface. Ids are known by
//! the traits [`session::CmHandler`] and [`interface_change::Observer`] only.

pub(crate) mod agent;
pub(crate) mod interface_change;
mod mad_sender;
mod peer_liveness;
pub(crate) mod ports;
pub(crate) mod session;
mod unanswered;
