//! RoCEv2 packets: bytes to values that can only be legal, and back.
//!
//! # Who checks what
//!
//! [`Packet::parse`] takes the payload of a UDP datagram and answers either with a packet that is
//! legal in itself (a defined opcode, exactly the headers that opcode has, a payload and a pad the
//! opcode may carry) or with a [`ParseError`]. Nobody asks these questions again. It does not check
//! the ICRC, because that needs the IP header: [`icrc::verify`] does, or [`icrc::solve_ident`]
//! where the IPv4 identification is unknown. What depends on a queue pair (keys, PSNs, the order of
//! opcodes, a payload of exactly one path MTU) is the transport's to check.
//!
//! [`Header::emit`] is the other direction. What it writes parses back to the same values. What was
//! parsed is written back byte for byte, but for fields the receiver must ignore and the sender
//! must zero: reserved bits, pad bytes and the pad count of a packet without payload.
//!
//! [`cm`] has the messages that connections are made with, which travel as payload.
//!
//! # What cannot happen
//!
//! No input makes anything here panic. There is no `unsafe`, no allocation and no I/O. The crate
//! itself uses only `core`; its one dependency, the CRC, uses `std` to find out what the processor
//! can do, with the feature `std`, which is on unless `default-features = false` says otherwise.
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
//! header.emit(5, &mut datagram[..room]).expect("an exact slot").copy_from_slice(b"hello");
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
