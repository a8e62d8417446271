//! How packets travel: links move datagrams and know no queue pairs.
//!
//! | modules | what they are |
//! |---|---|
//! | [`link`] | what a link is, and what is known of a run of packets |
//! | [`udp`] | the link over a UDP socket: `segments` (which destinations take segmented sends), [`rx_retention`] and `tx_retention` (what stays in kernel queues), [`tx_queue`] (what waits for room in its send buffer), [`drops`], [`rcvbuf_cost`] (what a packet occupies in a receive buffer) |
//! | [`shm`] | rings through shared memory between processes of one user |
//! | [`frames`] | whole Ethernet frames, for raw packet queue pairs |
//! | [`runtime_dir`], [`named`] | the folder where processes of one user find each other, and the sockets with names in it |
//! | [`slot`], [`service`] | who owns a range of queue pair numbers, and who listens for a service |
//! | [`forward`] | frames that processes of one host send each other's mailboxes |
//! | [`steer`], `bpf` | the kernel program that hands a packet to the process that owns its queue pair |
//! | [`source_ports`], `source_filter`, [`udp_table`] | which source ports of this host are ours, and keeping out all others |
//! | [`group`], [`link_events`] | addresses of multicast groups; what the system tells about its interfaces |
//!
//! # Unsafe code
//!
//! In `sys` and `frames::sys` (system calls that `socket2` does not have) and in `shm::memory` (memory that another process
//! changes).
#![deny(unsafe_code)]

mod bpf;
mod cmsg;
pub mod drops;
pub mod forward;
pub mod frames;
pub mod group;
pub mod link;
pub mod link_events;
pub mod named;
mod port_names;
pub mod rcvbuf_cost;
pub mod runtime_dir;
pub mod rx_retention;
mod segments;
pub mod service;
pub mod shm;
pub mod slot;
mod socket_file;
mod source_filter;
pub mod source_ports;
pub mod steer;
#[allow(unsafe_code)]
mod sys;
#[cfg(test)]
#[allow(unsafe_code)]
mod testing;
pub mod tx_queue;
mod tx_retention;
pub mod udp;
pub mod udp_table;

use roxe_base::sync;

pub use cmsg::Control;
pub use sys::{SendRoom, wake};
