//! What happens to an id, as its program hears it. Plain data.

use crate::ah::AhAttr;
use roxe_wire::Qkey;

/// What happened (values of `enum rdma_cm_event_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum EventKind {
    /// [`Id::resolve_addr`](super::Id::resolve_addr) found the way out: the id has a device.
    AddrResolved = 0,
    /// It did not; the status is a negative errno.
    AddrError = 1,
    /// [`Id::resolve_route`](super::Id::resolve_route) is done: [`Id::connect`](super::Id::connect)
    /// may follow.
    RouteResolved = 2,
    /// There is no path.
    RouteError = 3,
    /// A peer wants to connect; the event has a new id.
    ConnectRequest = 4,
    /// The peer accepts, and the program moves its queue pair itself:
    /// [`Id::establish`](super::Id::establish) confirms.
    ConnectResponse = 5,
    /// The peer accepts, but the queue pair could not be moved.
    ConnectError = 6,
    /// The peer does not answer, or has no such datagram service.
    Unreachable = 7,
    /// The peer does not want to; the status is its reason.
    Rejected = 8,
    /// Connected; of a datagram id: found.
    Established = 9,
    /// The connection is over.
    Disconnected = 10,
    /// The network interface is gone: destroy the id.
    DeviceRemoval = 11,
    /// Member of a group.
    MulticastJoin = 12,
    /// Not a member, or not any more.
    MulticastError = 13,
    /// The id's address is no longer one of its device, or the interface has another MAC address.
    AddrChange = 14,
    /// No packet of the connection is on the way any more.
    TimewaitExit = 15,
    /// [`Id::write_event`](super::Id::write_event): names were resolved to addresses.
    AddrinfoResolved = 16,
    /// [`Id::write_event`](super::Id::write_event): the program tells itself something.
    User = 18,
}

/// What the peer says with an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum EventData {
    /// Nothing.
    #[default]
    None,
    /// Of a connection.
    Conn(ConnParam),
    /// Of a datagram service.
    Ud(UdParam),
    /// What the program tells itself.
    Arg(u64),
    /// Of a group.
    Group {
        /// What the program calls its membership.
        user: u64,
        /// Where the group is.
        ud: UdParam,
    },
}

impl EventData {
    /// What the peer's program says.
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
    /// For the program at the other end. From it, the length is always the most it could have said,
    /// and zeros follow what it said.
    pub private_data: Vec<u8>,
    /// READs and atomics that this side serves at a time; [`ConnParam::MOST`] for all that the
    /// device can.
    pub responder_resources: u8,
    /// READs and atomics that this side has under way at a time; [`ConnParam::MOST`] for all that
    /// the device can.
    pub initiator_depth: u8,
    /// Hardware flow control; has no effect here, the peer is told.
    pub flow_control: bool,
    /// How often a queue pair repeats itself; above 7 is 7. Of no effect with `accept`.
    pub retry_count: u8,
    /// How often a queue pair waits for a receive of its peer; 7 and above is for ever.
    pub rnr_retry_count: u8,
    /// Whether the queue pair has a shared receive queue. Of no effect with a queue pair attached.
    pub srq: bool,
    /// The queue pair. Of no effect with one attached.
    pub qp_num: u32,
}

/// What suits a program that has no wishes: all READs and atomics that the device can, and as many
/// retries as there can be.
impl Default for ConnParam {
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            responder_resources: Self::MOST,
            initiator_depth: Self::MOST,
            flow_control: false,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            qp_num: 0,
        }
    }
}

impl ConnParam {
    /// `RDMA_MAX_RESP_RES` and `RDMA_MAX_INIT_DEPTH`.
    pub const MOST: u8 = 0xff;

    /// No terms, for events that have none.
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

/// The Q_Key of datagram ids and of groups (`RDMA_UDP_QKEY`).
pub const UDP_QKEY: Qkey = Qkey(0x0123_4567);

/// Where a datagram service or a group is (`struct rdma_ud_param`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UdParam {
    /// For the program at the other end; as with [`ConnParam::private_data`].
    pub private_data: Vec<u8>,
    /// The way there.
    pub ah_attr: AhAttr,
    /// The queue pair.
    pub qp_num: u32,
    /// Its key.
    pub qkey: u32,
}

/// What a program is told: kind and status of an event, and what the peer says with it.
pub(super) type Told = (EventKind, i32, EventData);
