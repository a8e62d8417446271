//! Events of ids, and their parameters.

use crate::ah::AhAttr;
use roxe_wire::Qkey;

/// Kind of an event (values of `enum rdma_cm_event_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum EventKind {
    /// [`Id::resolve_addr`](super::Id::resolve_addr) found the route; the id has a device.
    AddrResolved = 0,
    /// [`Id::resolve_addr`](super::Id::resolve_addr) failed; the status is a negative errno.
    AddrError = 1,
    /// [`Id::resolve_route`](super::Id::resolve_route) is done: [`Id::connect`](super::Id::connect)
    /// may follow.
    RouteResolved = 2,
    /// No path, or an alternate path failed.
    RouteError = 3,
    /// A peer requests a connection or datagram service; the event has a new id.
    ConnectRequest = 4,
    /// The peer accepted, and the program moves its queue pair itself:
    /// [`Id::establish`](super::Id::establish) confirms.
    ConnectResponse = 5,
    /// The peer accepted, but the queue pair could not be moved.
    ConnectError = 6,
    /// The peer did not answer, or has no such datagram service.
    Unreachable = 7,
    /// The peer rejected; the status is its reason.
    Rejected = 8,
    /// The connection is established; for a datagram id: the service was found.
    Established = 9,
    /// The connection is over.
    Disconnected = 10,
    /// The network interface was removed: destroy the id.
    DeviceRemoval = 11,
    /// A group was joined.
    MulticastJoin = 12,
    /// Joining a group failed.
    MulticastError = 13,
    /// The device lost the address of the id, or the MAC address changed.
    AddrChange = 14,
    /// The connection has left timewait: no packet of it is left in the network.
    TimewaitExit = 15,
    /// [`Id::write_event`](super::Id::write_event): names were resolved to addresses.
    AddrinfoResolved = 16,
    /// [`Id::write_event`](super::Id::write_event): an event of the program itself.
    User = 18,
}

/// Parameters of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EventData {
    /// The event has no parameters.
    #[default]
    None,
    /// Terms of a connection.
    Conn(ConnParam),
    /// A datagram service.
    Ud(UdParam),
    /// Argument of [`Id::write_event`](super::Id::write_event).
    Arg(u64),
    /// A multicast group.
    Group {
        /// Value that the program passed to [`Id::join_multicast`](super::Id::join_multicast).
        user_context: u64,
        /// Destination for datagrams to the group.
        ud: UdParam,
    },
}

impl EventData {
    /// Returns the private data of the peer's program.
    pub fn private_data(&self) -> &[u8] {
        match self {
            Self::Conn(conn) => &conn.private_data,
            Self::Ud(ud) => &ud.private_data,
            Self::None | Self::Group { .. } | Self::Arg(_) => &[],
        }
    }
}

/// Terms of a connection (`struct rdma_conn_param`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnParam {
    /// Data for the program at the other end. In an event it is padded with zeros to the maximum
    /// length.
    pub private_data: Vec<u8>,
    /// READs and atomics served at a time; [`ConnParam::MAX`] is the maximum of the device.
    pub responder_resources: u8,
    /// READs and atomics outstanding at a time; [`ConnParam::MAX`] is the maximum of the device.
    pub initiator_depth: u8,
    /// Hardware flow control; sent to the peer without further effect.
    pub flow_control: bool,
    /// Transport retries, at most 7. No effect with `accept`.
    pub retry_count: u8,
    /// RNR retries; 7 and above is infinite.
    pub rnr_retry_count: u8,
    /// True if the queue pair has a shared receive queue. No effect with an attached queue pair.
    pub srq: bool,
    /// Number of the queue pair. No effect with an attached queue pair.
    pub qp_num: u32,
}

/// As many READs, atomics and retries as possible.
impl Default for ConnParam {
    fn default() -> Self {
        let (responder_resources, initiator_depth) = (Self::MAX, Self::MAX);
        Self { responder_resources, initiator_depth, retry_count: 7, rnr_retry_count: 7, ..Self::NOTHING }
    }
}

impl ConnParam {
    /// `RDMA_MAX_RESP_RES` and `RDMA_MAX_INIT_DEPTH`.
    pub const MAX: u8 = 0xff;

    /// Parameters of events that have none.
    pub const NOTHING: Self = Self {
        private_data: Vec::new(),
        responder_resources: 0,
        initiator_depth: 0,
        flow_control: false,
        retry_count: 0,
        rnr_retry_count: 0,
        srq: false,
        qp_num: 0,
    };
}

/// Q_Key of datagram ids and groups (`RDMA_UDP_QKEY`).
pub const UDP_QKEY: Qkey = Qkey(0x0123_4567);

/// Destination of a datagram service or group (`struct rdma_ud_param`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UdParam {
    /// Private data, as in [`ConnParam::private_data`].
    pub private_data: Vec<u8>,
    /// Path to the queue pair.
    pub ah_attr: AhAttr,
    /// Number of the queue pair.
    pub qp_num: u32,
    /// Q_Key of the queue pair.
    pub qkey: u32,
}

/// Kind, status and parameters of an event to raise.
pub(super) type Outcome = (EventKind, i32, EventData);
