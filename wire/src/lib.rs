//! RoCEv2 packets: a parser that accepts only legal packets, and an emitter that writes them back.
//!
//! # Checks
//!
//! [`Packet::parse`] accepts the payload of a UDP datagram and returns either a packet that is
//! legal in itself (a defined opcode, exactly its extended headers, a legal payload and pad) or a
//! [`ParseError`]. It does not check the ICRC, which needs the IP header: use [`icrc::verify`], or
//! [`icrc::solve_ident`] if the IPv4 identification is unknown. The transport checks everything
//! that depends on a queue pair: keys, PSNs, the order of opcodes, the path MTU.
//!
//! [`Header::emit`] is the inverse: its output parses back to the same values. A parsed packet is
//! written back byte for byte, except for fields that receivers ignore and senders zero: reserved
//! bits, pad bytes and the pad count of a packet without payload.
//!
//! [`cm`] has the messages of the connection manager, which are the payload of UD packets.
//!
//! # Guarantees
//!
//! No input causes a panic. There is no `unsafe`, no allocation and no I/O. The crate itself uses
//! only `core`; its one dependency, the CRC, uses `std` to detect CPU features. The feature `std`
//! is on by default.
//!
//! # Example
//!
//! ```
//! use roxe_wire::{Bth, Header, Kind, NetHeader, Packet, Psn, Qpn, Request, SendTail, icrc};
//!
//! let loopback = std::net::Ipv4Addr::LOCALHOST.into();
//! let net = NetHeader { src: loopback, dst: loopback, src_port: 0xc132, ..NetHeader::default() };
//! let bth = Bth { ack_req: true, ..Bth::new(Qpn::new(0x11), Psn::new(256)) };
//! let header = Header { bth, kind: Kind::RcRequest(Request::SendOnly(SendTail::Plain)) };
//!
//! let mut datagram = vec![0; header.padded_len(5) + icrc::LEN];
//! let room = datagram.len() - icrc::LEN;
//! let slot = header.emit(5, &mut datagram[..room]).expect("the slot has the exact size");
//! slot.copy_from_slice(b"hello");
//! icrc::seal(&net, &mut datagram);
//!
//! assert!(icrc::verify(&net, &datagram));
//! let packet = Packet::parse(&datagram)?;
//! assert_eq!(packet.header, header);
//! assert_eq!(packet.payload, b"hello");
//! assert_eq!(packet.to_string(), "RC SEND_ONLY dqpn=0x11 psn=256 ackreq len=5");
//! # Ok::<(), roxe_wire::ParseError>(())
//! ```
#![no_std]
#![forbid(unsafe_code)]

mod bytes;

pub mod bth;
pub mod capture;
pub mod cm;
pub mod ext;
pub mod frame;
pub mod icrc;
pub mod net;
pub mod num;
pub mod opcode;
pub mod packet;
pub mod tm;

pub use bth::Bth;
pub use bytes::ParseError;
pub use ext::{
    Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Ieth, ImmDt, NakCode, Placement, Reth, Selectivity, Syndrome, XrcEth,
};
pub use net::{ECN, NetHeader, ROCE_PORT};
pub use num::{Gid, LKey, MAX_PAYLOAD, Msn, PathMtu, Pkey, Psn, Qkey, Qpn, RKey};
pub use opcode::{Kind, Opcode, Operation, Request, Response, SendTail, UcRequest};
pub use packet::{Form, Header, Packet, PacketReader};
pub use tm::{Rvh, TmOp, Tmh};
