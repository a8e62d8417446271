//! How packets travel. A link moves *runs*: packets of one size with one source and one
//! destination. Links know no queue pairs.
//!
//! - [`link`]: what all links share: where a run came from, what became of it, the queue of those
//!   that wait for room in a send buffer
//! - [`udp`]: the link through the network: a UDP socket
//! - [`rcvbuf_cost`]: what a packet occupies in the receive buffer of a UDP socket
//! - [`shm`]: the link through shared memory: rings between processes of one user
//! - [`raw`]: whole Ethernet frames, for raw packet queue pairs
//! - [`slot`], [`service`]: who owns a range of queue pair numbers, and who listens for a service
//! - [`runtime_dir`], [`named`]: the folder where processes of one user find each other, and the
//!   sockets with names in it
//! - [`forward`]: frames that processes of one host send to each other's mailboxes
//! - [`steer`], `bpf`: the kernel program that hands a packet to the process that owns its queue
//!   pair
//! - [`port_owners`]: UDP ports by which the users of this host are told apart: the source port
//!   that only this user has, whose port 4791 of an address is, which addresses the card of this
//!   user has
//! - [`source_ports`]: dropping what other users of this host sent
//! - [`probe`]: what the network says of a host that does not answer
//! - [`status`]: a process is asked what its queue pairs do
//! - [`netlink`]: whether packets to an address can leave; changes of the system's interfaces
//! - [`group`]: addresses of multicast groups
//! - `cmsg`, `sys`: control messages, and the system calls on sockets
//!
//! # The way of a run
//!
//! By UDP: [`udp::UdpLink::send`] hands a run to the kernel in one call, which cuts it into
//! packets; if the send buffer is full, the run waits in a [`link::TxQueue`]. At the receiver
//! the kernel asks the program of [`steer`] which process gets the packet, and
//! [`udp::UdpLink::recv_with`] receives what it has joined again.
//! [`source_ports::SourcePorts::admit`] drops what another user of this host sent. A packet for a
//! queue pair of another process goes on to its mailbox ([`forward`]).
//!
//! Through shared memory: [`shm::Writer::slot`] lends the room in the ring where a packet is built,
//! and [`shm::Writer::publish`] hands the run over. [`shm::Reader::next`] shows it where it is, and
//! then frees its room.
//!
//! # Unsafe code
//!
//! In `sys` and `raw::sys` (system calls that `socket2` does not have) and in `shm::memory`
//! (memory that another process changes).
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
