//! The polling policy: from what was seen to what to do. Pure: told the time and what was seen, it
//! knows no clock, makes no system call and wakes nobody.
//!
//! - `background`: whether the background thread serves, keeps looking, or leaves packets to the
//!   program, and for how long
//! - `waiting`: for how long a thread that waits for an event looks around before it sleeps
//! - `spin`: when looking again and again ends, and whether it is in the way of others
//! - `idle`: when a thread that polls in vain yields
//! - `delayed_ack`: which acknowledgement waits for the program's next packet, and for how long
//!
//! What threads tell each other for this is in `presence`. The constants act on each other, so they
//! are tested together: what the policy saw in runs of real programs is in `traces/`, and tests
//! replay it.

pub(crate) mod background;
pub(crate) mod delayed_ack;
pub(crate) mod idle;
pub(crate) mod spin;
#[cfg(test)]
mod traces;
pub(crate) mod waiting;

pub use delayed_ack::DelayedAck;
