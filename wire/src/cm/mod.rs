//! Messages of the connection manager: parses the 256 bytes of a management datagram (MAD), and
//! writes them.
//!
//! A MAD travels as the payload of an unreliable datagram between the queue pairs 1 of two ports,
//! with the Q_Key [`Qkey::GSI`](crate::Qkey::GSI). [`Mad::parse`] parses that payload;
//! [`gsi_header`] makes the packet header around it. [`message`] has the messages, [`num`] their
//! numbers and codes, and [`ip`] the header that RDMA CM puts before private data.
//!
//! A parsed message is written back byte for byte, except for reserved bits, which are ignored and
//! sent as 0.
//!
//! ```
//! use roxe_wire::cm::{CommId, Mad, Message, PrivateData, Rtu, TransactionId};
//!
//! let (local_comm_id, remote_comm_id) = (CommId(0x11), CommId(0x22));
//! let rtu = Rtu { local_comm_id, remote_comm_id, private_data: PrivateData::EMPTY };
//! let mad = Mad { tid: TransactionId(7), modifier: 0, message: Message::Rtu(rtu) };
//! assert_eq!(Mad::parse(&mad.to_bytes()), Ok(mad.clone()));
//! assert_eq!(mad.to_string(), "CM RTU comm=0x11 peer=0x22");
//! ```

mod bits;
mod mad;

pub mod ip;
pub mod message;
pub mod num;

pub use bits::MadError;
pub use ip::{IpCmError, IpCmHeader, IpPair};
pub use mad::{MAD_LEN, Mad, Message, gsi_header};
pub use message::{Apr, Drep, Dreq, Lap, Mra, Path, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
pub use num::{
    Answered, AprStatus, CommId, FlowLabel, Guid, Info, MtuCode, PortSpace, PrivateData, RejReason, ServiceId,
    SidrStatus, TimeCode, TransactionId, Transport, Uint, VendorId,
};
