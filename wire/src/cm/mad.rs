//! The management datagram (MAD): its header, the message in it, and both as one line of text.

use super::bits::{Bits, Field, MadError, layout};
use super::ip::IpCmHeader;
use super::message::{Apr, Drep, Dreq, Lap, Mra, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
use super::num::{CommId, ServiceId, TransactionId};
use crate::bth::Bth;
use crate::ext::Deth;
use crate::num::{Psn, Qkey, Qpn};
use crate::opcode::Kind;
use crate::packet::{Header, Packet};
use core::fmt;
use core::net::SocketAddr;

/// Size of every MAD in bytes.
pub const MAD_LEN: usize = 256;
const HEADER_LEN: usize = 24;

const CLASS: u8 = 7;
const BASE_VERSION: u8 = 1;
const CLASS_VERSION: u8 = 2;
/// "Send": the only method of this class.
const METHOD_SEND: u8 = 3;

layout! {
    /// The MAD header (IBA §13.4.3); status and class-specific bits are unused with the method
    /// Send.
    #[derive(Clone, Copy, Debug)]
    struct MadHeader of 24 bytes {
        base_version: u8 = [0, 0, 8];
        class: u8 = [1, 0, 8];
        class_version: u8 = [2, 0, 8];
        method: u8 = [3, 0, 8];
        tid: TransactionId = [8, 0, 64];
        attribute: u16 = [16, 0, 16];
        modifier: u32 = [20, 0, 32];
    }
}

impl MadHeader {
    const AT: &[Bits] = &[Bits::new(MAD_LEN, 0, 0, HEADER_LEN * 8)];

    // clause: CM-MAD
    fn check(&self) -> Result<(), MadError> {
        match self {
            Self { base_version, .. } if *base_version != BASE_VERSION => Err(MadError::BaseVersion),
            Self { class, .. } if *class != CLASS => Err(MadError::Class),
            Self { class_version, .. } if *class_version != CLASS_VERSION => Err(MadError::ClassVersion),
            Self { method, .. } if *method != METHOD_SEND => Err(MadError::Method),
            _ => Ok(()),
        }
    }
}

/// A message of the connection manager with its MAD header fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mad {
    /// Transaction id: new with REQ, DREQ, LAP and SIDR_REQ; an answer carries the id of its
    /// request.
    ///
    /// On the wire: byte 8 of the MAD, 64 bits.
    pub tid: TransactionId,
    /// Attribute modifier: vendor options (ECE); else 0.
    ///
    /// On the wire: byte 20 of the MAD, 32 bits.
    pub modifier: u32,
    /// The message; its type is the attribute id, byte 16 of the MAD, 16 bits.
    pub message: Message,
}

impl Mad {
    /// Parses the payload of a packet to queue pair 1.
    ///
    /// # Errors
    /// [`MadError`] if `payload` is not a message of the connection manager.
    pub fn parse(payload: &[u8]) -> Result<Self, MadError> {
        if payload.len() != MAD_LEN {
            return Err(MadError::Length);
        }
        let header = MadHeader::read(payload, MadHeader::AT)?;
        header.check()?;
        let message = Message::read(header.attribute, payload)?;
        Ok(Self { tid: header.tid, modifier: header.modifier, message })
    }

    /// Parses `packet` if it is a datagram to queue pair 1; else `None`. The Q_Key is not checked.
    pub fn of_packet(packet: &Packet<'_>) -> Option<Result<Self, MadError>> {
        let is_datagram = matches!(packet.header.kind, Kind::Ud { imm: None, .. });
        (is_datagram && packet.header.bth.dest_qpn == Qpn::GSI).then(|| Self::parse(packet.payload))
    }

    /// Returns the bytes on the wire.
    pub fn to_bytes(&self) -> [u8; MAD_LEN] {
        let header = MadHeader {
            base_version: BASE_VERSION,
            class: CLASS,
            class_version: CLASS_VERSION,
            method: METHOD_SEND,
            tid: self.tid,
            attribute: self.message.attribute(),
            modifier: self.modifier,
        };
        let mut bytes = [0; MAD_LEN];
        header.write(&mut bytes, MadHeader::AT);
        self.message.write(&mut bytes);
        bytes
    }
}

/// The enum of messages: attribute id and name of each.
macro_rules! messages {
    ($($attribute:literal $name:literal $variant:ident, $doc:literal;)+) => {
        /// A message, identified by its attribute id.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Message {
            $(
                #[doc = concat!($doc, "; attribute id ", $attribute, ".")]
                $variant($variant),
            )+
        }

        impl Message {
            const AT: &[Bits] = &[Bits::new(MAD_LEN, HEADER_LEN, 0, (MAD_LEN - HEADER_LEN) * 8)];

            /// Returns the attribute id of the MAD.
            // clause: CM-ATTRIBUTES
            pub const fn attribute(&self) -> u16 {
                match self {
                    $(Self::$variant(_) => $attribute,)+
                }
            }

            /// Returns the name of the message in the specification.
            pub const fn name(&self) -> &'static str {
                match self {
                    $(Self::$variant(_) => $name,)+
                }
            }

            fn read(attribute: u16, mad: &[u8]) -> Result<Self, MadError> {
                match attribute {
                    $($attribute => $variant::read(mad, Self::AT).map(Self::$variant),)+
                    _ => Err(MadError::Attribute),
                }
            }

            fn write(&self, mad: &mut [u8]) {
                match self {
                    $(Self::$variant(message) => message.write(mad, Self::AT),)+
                }
            }
        }

        impl fmt::Display for Message {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} ", self.name())?;
                match self {
                    $(Self::$variant(message) => message.fmt(f),)+
                }
            }
        }

        $(
            impl From<$variant> for Message {
                fn from(message: $variant) -> Self {
                    Self::$variant(message)
                }
            }
        )+
    };
}

messages! {
    0x0010 "REQ" Req, "Request for a connection";
    0x0011 "MRA" Mra, "The answer will be sent later";
    0x0012 "REJ" Rej, "Rejection";
    0x0013 "REP" Rep, "Reply to a request";
    0x0014 "RTU" Rtu, "Ready to use";
    0x0015 "DREQ" Dreq, "Request to end a connection";
    0x0016 "DREP" Drep, "Reply to a DREQ";
    0x0017 "SIDR_REQ" SidrReq, "Request for the queue pair of a datagram service";
    0x0018 "SIDR_REP" SidrRep, "Reply to a SIDR_REQ";
    0x0019 "LAP" Lap, "Load an alternate path";
    0x001a "APR" Apr, "Reply to a LAP";
}

/// Returns the header of a packet that carries a MAD from one queue pair 1 to another: UD SEND ONLY
/// in the default partition.
// clause: CM-GSI, BTH-MIGRATED
pub const fn gsi_header(psn: Psn) -> Header {
    let deth = Deth { qkey: Qkey::GSI, src_qpn: Qpn::GSI };
    Header { bth: Bth { mig_req: true, ..Bth::new(Qpn::GSI, psn) }, kind: Kind::Ud { deth, imm: None } }
}

impl fmt::Display for Mad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CM {}", self.message)
    }
}

/// The sender's and the receiver's id of a connection.
struct Ids(CommId, CommId);

impl fmt::Display for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "comm={} peer={}", self.0, self.1)
    }
}

/// A service, with the addresses that RDMA CM puts into private data.
struct Target<'a>(ServiceId, &'a [u8]);

impl fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(service, private_data) = self;
        let header = IpCmHeader::parse(private_data).map(|(header, _)| header);
        match (service.port(), header) {
            (Some((space, port)), Ok(IpCmHeader { src_port, addresses })) => {
                let (src, dst) = (SocketAddr::new(addresses.src(), src_port), SocketAddr::new(addresses.dst(), port));
                write!(f, "{} {src} > {dst}", space.name())
            }
            _ => write!(f, "service={service}"),
        }
    }
}

impl fmt::Display for Req {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, service_id, private_data, transport, local_qpn, starting_psn, .. } = self;
        write!(f, "comm={local_comm_id} {} ", Target(*service_id, private_data.as_bytes()))?;
        write!(f, "{transport} qpn={local_qpn} psn={starting_psn} ")?;
        match self.path_mtu.mtu() {
            Some(mtu) => write!(f, "mtu={}", mtu.bytes())?,
            None => write!(f, "mtu=code {}", self.path_mtu.get())?,
        }
        write!(f, " resources={} depth={}", self.responder_resources, self.initiator_depth)
    }
}

impl fmt::Display for Mra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, remote_comm_id, answered, service_timeout, .. } = self;
        write!(f, "{} of={answered} timeout={:?}", Ids(*local_comm_id, *remote_comm_id), service_timeout.duration())
    }
}

impl fmt::Display for Rej {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, remote_comm_id, answered, reason, .. } = self;
        write!(f, "{} of={answered} reason={reason}", Ids(*local_comm_id, *remote_comm_id))
    }
}

impl fmt::Display for Rep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, remote_comm_id, local_qpn, local_eecn, starting_psn, .. } = self;
        write!(f, "{} qpn={local_qpn} ", Ids(*local_comm_id, *remote_comm_id))?;
        if local_eecn.get() != 0 {
            write!(f, "eecn={local_eecn} ")?;
        }
        write!(f, "psn={starting_psn} resources={} depth={}", self.responder_resources, self.initiator_depth)
    }
}

impl fmt::Display for Rtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ids(self.local_comm_id, self.remote_comm_id).fmt(f)
    }
}

impl fmt::Display for Dreq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} qpn={}", Ids(self.local_comm_id, self.remote_comm_id), self.remote_qpn)
    }
}

impl fmt::Display for Drep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ids(self.local_comm_id, self.remote_comm_id).fmt(f)
    }
}

impl fmt::Display for Lap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { local_comm_id, remote_comm_id, remote_qpn, local_gid, remote_gid, .. } = self;
        write!(f, "{} qpn={remote_qpn} ", Ids(*local_comm_id, *remote_comm_id))?;
        write!(f, "{} > {}", local_gid.to_ip(), remote_gid.to_ip())
    }
}

impl fmt::Display for Apr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} status={}", Ids(self.local_comm_id, self.remote_comm_id), self.status)
    }
}

impl fmt::Display for SidrReq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request_id, service_id, private_data, .. } = self;
        write!(f, "request={request_id} {}", Target(*service_id, private_data.as_bytes()))
    }
}

impl fmt::Display for SidrRep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request_id, service_id, status, qpn, qkey, .. } = self;
        write!(f, "request={request_id} service={service_id} status={status} qpn={qpn} qkey={:#x}", qkey.0)
    }
}
