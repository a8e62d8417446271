//! Work requests and completions as plain data: what goes into a queue and what comes out.
//!
//! The numeric values are those of the verbs ABI, so that the C edge converts by number. Touches
//! only `wire`.

use bitflags::bitflags;
use core::ffi::CStr;
use roxe_wire::{Feth, Gid, ImmDt, LKey, Placement, Qkey, Qpn, RKey, Selectivity};

/// Longest message, bytes (IBA §9.7.7: 2^31).
pub(crate) const MAX_MESSAGE: u32 = 1 << 31;

/// Bytes of the remote word of an atomic and of an ATOMIC WRITE.
pub(crate) const ATOMIC_LEN: u32 = 8;

/// One element of a scatter/gather list: `length` bytes at virtual address `addr` of the region
/// `lkey`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Virtual address.
    pub addr: u64,
    /// Bytes. (The verbs rule "0 means 2^31" is applied at the C edge, not here.)
    pub length: u32,
    /// Key of the region.
    pub lkey: LKey,
}

bitflags! {
    /// Rights on a memory region, window or queue pair (values of `enum ibv_access_flags`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Access: u32 {
        /// The owner may have the card write here.
        const LOCAL_WRITE = 1;
        /// Peers may RDMA WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// Peers may RDMA READ.
        const REMOTE_READ = 1 << 2;
        /// Peers may do atomics.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound here.
        const MW_BIND = 1 << 4;
        /// Addresses start at zero.
        const ZERO_BASED = 1 << 5;
        /// Pages need not be present at registration.
        const ON_DEMAND = 1 << 6;
        /// A hint that the memory is made of huge pages.
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
    /// The flags as in C (`enum ibv_access_flags`), with `separator` between them.
    pub fn names(self, separator: &str) -> String {
        let names: Vec<_> = self.iter_names().map(|(name, _)| format!("IBV_ACCESS_{name}")).collect();
        names.join(separator)
    }

    /// The rights that a FLUSH needs, on the queue pair and on the memory; `None` if it asks for
    /// something reserved.
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

/// Where a datagram goes, or a connection leads: the resolved address vector.
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
    /// Flow label, 20 bits; chooses the UDP source port where the link can.
    pub flow_label: u32,
    /// Index of `sgid` in the port's table, for queries.
    pub sgid_index: u8,
    /// The most that a connection sends there, Mbit/s (the static rate); 0: as much as it can.
    /// Datagrams do not heed it.
    pub static_rate: u32,
}

/// What a send work request asks for.
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
        /// Address in the memory of the peer.
        remote_addr: u64,
        /// Its key there.
        rkey: RKey,
    },
    /// RDMA WRITE with immediate data.
    WriteImm {
        /// Address in the memory of the peer.
        remote_addr: u64,
        /// Its key there.
        rkey: RKey,
        /// Delivered with the completion.
        imm: ImmDt,
    },
    /// RDMA READ into the local list.
    Read {
        /// Address in the memory of the peer.
        remote_addr: u64,
        /// Its key there.
        rkey: RKey,
    },
    /// Swap in `swap` if the remote word equals `compare`; the old value lands in the local list.
    CompareSwap {
        /// Address in the memory of the peer.
        remote_addr: u64,
        /// Its key there.
        rkey: RKey,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Add `add` to the remote word; the old value lands in the local list.
    FetchAdd {
        /// Address in the memory of the peer.
        remote_addr: u64,
        /// Its key there.
        rkey: RKey,
        /// Addend.
        add: u64,
    },
    /// Store the 8 bytes of the payload at an aligned address of the peer, all at once; complete
    /// when that is done.
    AtomicWrite {
        /// Address in the memory of the peer.
        remote_addr: u64,
        /// Its key there.
        rkey: RKey,
    },
    /// Complete when what was written to the peer before has reached `feth.placement` there. It has
    /// no payload.
    Flush {
        /// Address in the memory of the peer.
        remote_addr: u64,
        /// Its key there.
        rkey: RKey,
        /// Bytes from `remote_addr` on; without meaning for a whole region.
        length: u32,
        /// How much of the memory, and to which level.
        feth: Feth,
    },
    /// Takes access through a key of our own away: that of a bound window.
    LocalInvalidate(RKey),
    /// Opens a memory window on a part of a region; see [`Bind`] for the fields.
    BindWindow {
        /// Names the window, and is its key from then on.
        rkey: RKey,
        /// The region.
        lkey: LKey,
        /// What the peer may do.
        access: Access,
        /// Where the window begins.
        addr: u64,
        /// Bytes.
        length: u64,
    },
}

/// What a memory window shall show (IBA §10.6.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The key of the window from then on. Its upper 24 bits name the window, the lower 8 are for
    /// the program to choose.
    pub rkey: RKey,
    /// The region that it opens a part of.
    pub lkey: LKey,
    /// Remote rights, and `ZERO_BASED` for a window whose first byte has the address 0; others mean
    /// nothing.
    pub access: Access,
    /// Its first byte, as the region names it.
    pub addr: u64,
    /// Bytes; 0 closes a window of type 1.
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

/// Where the payload of a send comes from.
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// Registered memory; also the landing place of READ and atomics.
    Sges(&'a [Sge]),
    /// Bytes copied at post time, up to `max_inline_data`; the 8 of an ATOMIC WRITE always fit.
    Inline(&'a [u8]),
}

/// A send work request as it is posted.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// Handed back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// FENCE, SIGNALED, SOLICITED (INLINE is implied by `data`).
    pub flags: SendFlags,
    /// Payload.
    pub data: SendData<'a>,
    /// Destination; required on UD, ignored elsewhere.
    pub ud: Option<UdDest>,
}

/// A receive work request as it is posted.
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest<'a> {
    /// Handed back in the completion.
    pub wr_id: u64,
    /// Where the message lands.
    pub sges: &'a [Sge],
}

/// Status of a completion (values of `enum ibv_wc_status`, IBA §11.6.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum WcStatus {
    /// Done.
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
    /// Not executed: the QP went to the error state first.
    WrFlushErr = 5,
    /// A memory window could not be bound, or a key not be invalidated: the memory management
    /// operation error of IBA 11.6.2.
    MwBindErr = 6,
    /// The responder answered something impossible.
    BadRespErr = 7,
    /// A protection error on a local buffer of a WRITE with immediate.
    LocAccessErr = 8,
    /// The responder found the request illegal.
    RemInvReqErr = 9,
    /// The responder's memory protection refused.
    RemAccessErr = 10,
    /// The responder could not complete the operation.
    RemOpErr = 11,
    /// No answer after `retry_cnt` retries.
    RetryExcErr = 12,
    /// The responder stayed not-ready for `rnr_retry` retries.
    RnrRetryExcErr = 13,
    /// Anything else; unusable QP or device.
    GeneralErr = 21,
    /// Tag matching: the tag to remove was not there any more.
    TmErr = 22,
    /// Tag matching: the card did not bring the data of a rendezvous.
    TmRndvIncomplete = 23,
}

/// What people call the values of `enum ibv_wc_status`, also those that are not in [`WcStatus`]:
/// programs print and people search for these words.
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
    /// Tag matching: the program told how many unexpected messages it has handled.
    TmSync = 132,
    /// Tag matching: a tagged message was received; `Cqe::tm` says how.
    TmRecv = 133,
    /// Tag matching: a message without a tag was received.
    TmNoTag = 134,
}

/// Four bytes that came along with a received message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WcExtra {
    /// Nothing.
    #[default]
    None,
    /// Immediate data.
    Imm(ImmDt),
    /// This key was invalidated by the sender.
    Invalidated(RKey),
}

/// A completion queue entry. On any status but `Success` only `wr_id`, `status`, `qpn` and
/// `vendor_err` mean something (IBA §11.4.2.1), `opcode` is filled all the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cqe {
    /// The identifier of the work request.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Why it failed, beyond `status`: see [`VendorErr`].
    pub vendor_err: VendorErr,
    /// Bytes received, read or swapped; on UD it includes the 40 bytes of GRH.
    pub byte_len: u32,
    /// Immediate data or invalidated key.
    pub extra: WcExtra,
    /// Local queue pair.
    pub qpn: Qpn,
    /// Remote queue pair (UD only).
    pub src_qpn: Qpn,
    /// Whether a GRH precedes the data (UD only).
    pub grh: bool,
    /// Layer-3 type of a received datagram as hardware reports it in `sl`: 0b1010 for IPv4, 0b1001
    /// for IPv6, else 0.
    pub sl: u8,
    /// Raises "solicited only" events: the sender asked for it, or this is an error.
    pub solicited: bool,
    /// A received frame holds TCP or UDP in IPv4, and its checksums are right.
    pub ip_csum_ok: bool,
    /// Tag of the flow that a received frame matched; 0: none.
    pub flow_tag: u32,
    /// When it was generated, nanoseconds of the engine's clock.
    pub timestamp: u64,
    /// What tag matching has to say; empty on other queues.
    pub tm: TmInfo,
}

bitflags! {
    /// What a completion of tag matching means; the values are those of `enum ibv_wc_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct TmFlags: u32 {
        /// The program must tell how many unexpected messages it has handled before new tags match
        /// anything.
        const SYNC_REQ = 1 << 4;
        /// The message found a posted tag.
        const MATCH = 1 << 5;
        /// Its data is there.
        const DATA_VALID = 1 << 6;
    }
}

/// The part of a completion that belongs to tag matching (`struct ibv_wc_tm_info`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TmInfo {
    /// Tag of a matched message, when its data begins to arrive; else 0. An ordinary receive has it
    /// in its data.
    pub tag: u64,
    /// What the sending program wrote beside the tag; likewise.
    pub app_ctx: u32,
    /// What happened.
    pub flags: TmFlags,
}

/// Detail of a failure, reported as `vendor_err`; the numbers are listed in the README.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VendorErr(pub u32);
