//! Links of a device: they move *runs*, packets of one size between two addresses, and know no
//! queue pairs.
//!
//! [`udp`] sends to the network: [`udp::UdpLink::send`] passes a run to the kernel in one call, or
//! queues it while the send buffer is full ([`link::TxQueue`]); at the receiver the program of
//! [`steer`] selects the process, and [`forward`] passes on packets that reached the wrong one.
//! [`shm`] connects processes of one user through rings in shared memory, [`raw`] carries Ethernet
//! frames. [`slot`], [`service`] and [`named`] let processes find each other; [`port_owners`] and
//! [`source_ports`] keep out packets of other users of this host. Unsafe code is confined to `sys`,
//! `raw::sys` (system calls) and `shm::memory`.
#![deny(unsafe_code)]

mod bpf;
mod cmsg;
pub mod forward;
pub mod group;
pub mod link;
pub mod named;
pub mod netlink;

pub mod port_owners;
pub mod probe;
pub mod raw;
pub mod rcvbuf_cost;
pub mod runtime_dir;
pub mod service;
pub mod shm;
pub mod slot;
pub mod source_ports;
pub mod status;
pub mod steer;
#[allow(unsafe_code)]
mod sys;
#[cfg(test)]
#[allow(unsafe_code)]
mod testing;
pub mod udp;

use roxe_base::sync;

pub use cmsg::Control;
pub use sys::{Readiness, SendRoom, wake};
