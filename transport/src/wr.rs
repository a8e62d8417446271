//! Work requests and completions as plain data. The numeric values are those of the verbs ABI, so
//! that the C API converts by number.

use bitflags::bitflags;
use core::ffi::CStr;
use roxe_wire::{Feth, Gid, ImmDt, LKey, Placement, Qkey, Qpn, RKey, Selectivity};

/// Maximum message length in bytes (IBA §9.7.7: 2^31).
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;

/// Length of the remote word of an atomic and of an ATOMIC WRITE, in bytes.
pub(crate) const ATOMIC_LEN: u32 = 8;

/// One element of a scatter/gather list: `length` bytes at virtual address `addr` of the region
/// `lkey`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Virtual address.
    pub addr: u64,
    /// Length in bytes. The C API applies the verbs rule "0 means 2^31".
    pub length: u32,
    /// Key of the region.
    pub lkey: LKey,
}

bitflags! {
    /// Rights on a memory region, window or queue pair (values of `enum ibv_access_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Access: u32 {
        /// Local write access.
        const LOCAL_WRITE = 1;
        /// Peers may RDMA WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may RDMA READ.
        const REMOTE_READ = 1 << 2;
        /// Peers may do atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to this memory.
        const MW_BIND = 1 << 4;
        /// Addresses start at zero.
        const ZERO_BASED = 1 << 5;
        /// Pages need not be present at registration.
        const ON_DEMAND = 1 << 6;
        /// Hint that the memory consists of huge pages.
        const HUGETLB = 1 << 7;
        /// Peers may FLUSH with global visibility.
        const FLUSH_GLOBAL = 1 << 8;
        /// Peers may FLUSH to persistence.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Accesses may be reordered.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// Rights of peers to read, write and change memory with atomics.
    pub const OF_PEERS: Self = Self::REMOTE_READ.union(Self::REMOTE_WRITE).union(Self::REMOTE_ATOMIC);

    /// Returns the C names (`enum ibv_access_flags`), joined by `separator`.
    pub fn names(self, separator: &str) -> String {
        let names: Vec<_> = self.iter_names().map(|(name, _)| format!("IBV_ACCESS_{name}")).collect();
        names.join(separator)
    }

    /// Returns the rights that a FLUSH needs on the queue pair and the memory; `None` if it uses a
    /// reserved value.
    // clause: FLUSH-RESERVED
    pub const fn of_flush(feth: &Feth) -> Option<Self> {
        match (feth.selectivity, feth.placement) {
            (Selectivity::Reserved(_), _) => None,
            (_, Placement::GLOBAL_VISIBILITY) => Some(Self::FLUSH_GLOBAL),
            (_, Placement::PERSISTENCE) => Some(Self::FLUSH_PERSISTENT),
            (_, Placement::BOTH) => Some(Self::FLUSH_GLOBAL.union(Self::FLUSH_PERSISTENT)),
            (_, Placement(_)) => None,
        }
    }
}

bitflags! {
    /// Flags of a send work request (values of `enum ibv_send_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u32 {
        /// Wait until earlier READs and atomics of this queue are complete.
        const FENCE = 1;
        /// Report success with a completion.
        const SIGNALED = 1 << 1;
        /// Ask the receiver to raise a solicited event.
        const SOLICITED = 1 << 2;
        /// The payload was copied at post time.
        const INLINE = 1 << 3;
        /// Fill in the checksums of IPv4, TCP and UDP (raw packets only).
        const IP_CSUM = 1 << 4;
    }
}

/// Address vector: the resolved path of a datagram or connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Av {
    /// Source GID; must be an address of the port.
    pub sgid: Gid,
    /// Destination GID.
    pub dgid: Gid,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit; 0 and 1 are sent as 64, as hardware does.
    pub hop_limit: u8,
    /// Flow label, 20 bits; selects the UDP source port where the link can.
    pub flow_label: u32,
    /// Index of `sgid` in the port's table, for queries.
    pub sgid_index: u8,
    /// Static rate of a connection in Mbit/s; 0 is unlimited. Ignored for datagrams.
    pub static_rate: u32,
}

/// Operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND.
    Send,
    /// SEND with four bytes of immediate data.
    SendImm(ImmDt),
    /// SEND that invalidates a key of the receiver.
    SendInvalidate(RKey),
    /// RDMA WRITE to `remote_addr` under `rkey`.
    Write {
        /// First address in the memory of the peer.
        remote_addr: u64,
        /// Remote key.
        rkey: RKey,
    },
    /// RDMA WRITE with immediate data.
    WriteImm {
        /// First address in the memory of the peer.
        remote_addr: u64,
        /// Remote key.
        rkey: RKey,
        /// Delivered with the completion.
        imm: ImmDt,
    },
    /// RDMA READ into the local list.
    Read {
        /// First address in the memory of the peer.
        remote_addr: u64,
        /// Remote key.
        rkey: RKey,
    },
    /// Store `swap` if the remote word equals `compare`; the old value is written to the local
    /// list.
    CompareSwap {
        /// First address in the memory of the peer.
        remote_addr: u64,
        /// Remote key.
        rkey: RKey,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Add `add` to the remote word; the old value is written to the local list.
    FetchAdd {
        /// First address in the memory of the peer.
        remote_addr: u64,
        /// Remote key.
        rkey: RKey,
        /// Number to add.
        add: u64,
    },
    /// Store the 8 payload bytes atomically at an aligned remote address; completes after the
    /// store.
    AtomicWrite {
        /// First address in the memory of the peer.
        remote_addr: u64,
        /// Remote key.
        rkey: RKey,
    },
    /// Complete when earlier writes to the peer have reached `feth.placement`. No payload.
    Flush {
        /// First address in the memory of the peer.
        remote_addr: u64,
        /// Remote key.
        rkey: RKey,
        /// Length of the range in bytes; unused for a whole region.
        length: u32,
        /// Range and level of the flush.
        feth: Feth,
    },
    /// Invalidate a local key: that of a bound window.
    LocalInvalidate(RKey),
    /// Bind a memory window to a part of a region; fields as in [`Bind`].
    BindWindow {
        /// New key of the window.
        rkey: RKey,
        /// Key of the region.
        lkey: LKey,
        /// Rights of the peer.
        access: Access,
        /// Start address.
        addr: u64,
        /// Length in bytes.
        length: u64,
    },
}

impl SendOp {
    /// Returns true if only a response of its own completes the operation, and `max_rd_atomic`
    /// limits it.
    pub(crate) const fn awaits_response(&self) -> bool {
        self.gets_read_response() || self.is_atomic()
    }

    pub(crate) const fn is_read(&self) -> bool {
        matches!(self, Self::Read { .. })
    }

    /// Returns true if the operation causes READ responses; only those of a READ carry data.
    // clause: NONPOSTED-ANSWER
    pub(crate) const fn gets_read_response(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::AtomicWrite { .. } | Self::Flush { .. })
    }

    pub(crate) const fn is_atomic(&self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Returns true if the operation is local and sends nothing.
    pub const fn is_local(&self) -> bool {
        matches!(self, Self::LocalInvalidate(_) | Self::BindWindow { .. })
    }
}

/// Binding of a memory window (IBA §10.6.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// New key of the window: the upper 24 bits name it, the program chooses the lower 8.
    pub rkey: RKey,
    /// Key of the region.
    pub lkey: LKey,
    /// Remote rights, and `ZERO_BASED` if the window's first byte has address 0; other bits are
    /// ignored.
    pub access: Access,
    /// Start address in the region.
    pub addr: u64,
    /// Length in bytes; 0 unbinds a window of type 1.
    pub length: u64,
}

/// Destination of one UD message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdDest {
    /// Address vector of the handle.
    pub av: Av,
    /// Destination queue pair.
    pub qpn: Qpn,
    /// Q_Key to send, or the QP's own if its top bit is set.
    pub qkey: Qkey,
}

/// Source of a send payload.
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// Registered memory; also the destination of READs and atomics.
    Sges(&'a [Sge]),
    /// Bytes copied at post time, up to `max_inline_data`; the 8 of an ATOMIC WRITE always fit.
    Inline(&'a [u8]),
}

/// A send work request as it is posted.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Operation, with its remote address and key.
    pub op: SendOp,
    /// FENCE, SIGNALED, SOLICITED (INLINE is implied by `data`).
    pub flags: SendFlags,
    /// Payload of the request, or the buffers for its response.
    pub data: SendData<'a>,
    /// Destination; required on UD, ignored on other services.
    pub ud: Option<UdDest>,
}

/// A receive work request as it is posted.
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Destination of the message.
    pub sges: &'a [Sge],
}

/// Status of a completion (values of `enum ibv_wc_status`, IBA §11.6.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum WcStatus {
    /// The operation completed.
    #[default]
    Success = 0,
    /// A local buffer is too short or too long.
    LocLenErr = 1,
    /// The work request is malformed for this QP.
    LocQpOpErr = 2,
    /// EE context error (reliable datagram only; never produced).
    LocEecOpErr = 3,
    /// A local key, range or right is wrong.
    LocProtErr = 4,
    /// Not executed: the QP entered the error state first.
    WrFlushErr = 5,
    /// A memory window could not be bound, or a key could not be invalidated: the memory management
    /// operation error of IBA 11.6.2.
    MwBindErr = 6,
    /// The response does not match the request.
    BadRespErr = 7,
    /// A protection error on a local buffer of a WRITE with immediate.
    LocAccessErr = 8,
    /// The responder found the request illegal.
    RemInvReqErr = 9,
    /// The responder's memory protection refused the access.
    RemAccessErr = 10,
    /// The responder could not complete the operation.
    RemOpErr = 11,
    /// No response after `retry_cnt` retries.
    RetryExcErr = 12,
    /// The responder stayed not-ready for `rnr_retry` retries.
    RnrRetryExcErr = 13,
    /// Anything else; unusable QP or device.
    GeneralErr = 21,
    /// Tag matching: the tag to remove does not exist.
    TmErr = 22,
    /// Tag matching: the card did not read the data of a rendezvous.
    TmRndvIncomplete = 23,
}

/// The texts of `ibv_wc_status_str`, including statuses that are not in [`WcStatus`].
pub const WC_STATUS_TEXTS: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

/// Operation of a completion (values of `enum ibv_wc_opcode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum WcOpcode {
    /// SEND in all forms.
    #[default]
    Send = 0,
    /// RDMA WRITE, with or without immediate.
    RdmaWrite = 1,
    /// RDMA READ.
    RdmaRead = 2,
    /// COMPARE_SWAP.
    CompareSwap = 3,
    /// FETCH_ADD.
    FetchAdd = 4,
    /// A memory window was bound.
    BindWindow = 5,
    /// A key was invalidated.
    LocalInvalidate = 6,
    /// FLUSH.
    Flush = 8,
    /// ATOMIC WRITE.
    AtomicWrite = 9,
    /// A SEND was received.
    Recv = 128,
    /// A WRITE with immediate was received.
    RecvRdmaWithImm = 129,
    /// Tag matching: a tag was posted.
    TmAdd = 130,
    /// Tag matching: a posted tag was removed.
    TmDel = 131,
    /// Tag matching: the program confirmed unexpected messages.
    TmSync = 132,
    /// Tag matching: a tagged message was received; see `Cqe::tm`.
    TmRecv = 133,
    /// Tag matching: a message without a tag was received.
    TmNoTag = 134,
}

/// Immediate data or invalidated key of a received message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WcExtra {
    /// The message has neither.
    #[default]
    None,
    /// Immediate data.
    Imm(ImmDt),
    /// This key was invalidated by the sender.
    Invalidated(RKey),
}

/// A completion queue entry. On any status but `Success` only `wr_id`, `status`, `qpn`,
/// `vendor_err` (IBA §11.4.2.1) and `opcode` are valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cqe {
    /// The identifier of the work request.
    pub wr_id: u64,
    /// Status of the operation.
    pub status: WcStatus,
    /// Kind of the completed operation.
    pub opcode: WcOpcode,
    /// Detailed cause of an error: see [`VendorErr`].
    pub vendor_err: VendorErr,
    /// Bytes received, read or swapped; on UD it includes the 40 bytes of GRH.
    pub byte_len: u32,
    /// Immediate data or invalidated key.
    pub extra: WcExtra,
    /// Local queue pair.
    pub qpn: Qpn,
    /// Remote queue pair (UD only).
    pub src_qpn: Qpn,
    /// True if a GRH precedes the data (UD only).
    pub grh: bool,
    /// Layer-3 type of a received datagram as hardware reports it in `sl`: 0b1010 for IPv4, 0b1001
    /// for IPv6, else 0.
    pub sl: u8,
    /// True if it raises "solicited only" events: requested by the sender, or an error.
    pub solicited: bool,
    /// True if a received frame is TCP or UDP over IPv4 with correct checksums.
    pub ip_csum_ok: bool,
    /// Tag of the flow that a received frame matched; 0: none.
    pub flow_tag: u32,
    /// Time of completion, nanoseconds of the engine's clock.
    pub timestamp: u64,
    /// Tag matching information; empty on other queues.
    pub tm: TmInfo,
}

bitflags! {
    /// Flags of a tag matching completion (values of `enum ibv_wc_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct TmFlags: u32 {
        /// The program must confirm unexpected messages before new tags match.
        const SYNC_REQ = 1 << 4;
        /// The message matched a posted tag.
        const MATCH = 1 << 5;
        /// The data is complete.
        const DATA_VALID = 1 << 6;
    }
}

/// Tag matching part of a completion (`struct ibv_wc_tm_info`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TmInfo {
    /// Tag of a matched message, when its data begins to arrive; else 0. An ordinary receive has
    /// the tag in its data.
    pub tag: u64,
    /// Application context sent with the tag; 0 in the same cases.
    pub app_ctx: u32,
    /// True or false properties of the message.
    pub flags: TmFlags,
}

/// Detail of a failure, reported as `vendor_err` (docs/reference/completions.md).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VendorErr(pub u32);
