//! The events that rules and the trace observe: calls of verbs and their results, created objects,
//! and dropped packets.
//!
//! Each event is emitted where it happens, without a judgement. Events of one object are in order.

use roxe_base::error::Error;
use roxe_base::uses::ObjectId;
use roxe_transport::cx::{MemError, Side};
use roxe_transport::qp::{AttrMask, DropReason, PostError, QpAttr, QpCaps, QpState, RetryCounts, Service};
use roxe_transport::wr::{Access, Bind, Cqe, RecvRequest, SendData, SendRequest, Sge};
use roxe_wire::{Gid, Header, Psn, Qpn, RKey, Request};
use std::fmt::Debug;

/// One event.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// An object was created.
    Created(ObjectId, Object),
    /// A region is being destroyed. Until `Destroyed` or `DestroyRefused` follows, other threads
    /// may already find its keys invalid.
    DestroyBegun(ObjectId),
    /// An object was destroyed.
    Destroyed(ObjectId),
    /// An object was not destroyed, because others use it.
    DestroyRefused(ObjectId, &'a Error),
    /// A region was registered again under the same keys.
    Reregistered(ObjectId, MrInfo),
    /// Attributes of a queue pair changed.
    Modified {
        /// The queue pair.
        qp: ObjectId,
        /// Attributes passed by the program.
        attr: &'a QpAttr,
        /// The valid attributes.
        mask: AttrMask,
    },
    /// A change of attributes was refused.
    ModifyRefused {
        /// The queue pair.
        qp: ObjectId,
        /// Attributes passed by the program.
        attr: &'a QpAttr,
        /// The valid attributes.
        mask: AttrMask,
        /// Error that the call returned.
        error: &'a Error,
    },
    /// A send request was posted.
    PostedSend {
        /// The queue pair.
        qp: ObjectId,
        /// The request as the program posted it.
        request: &'a SendRequest<'a>,
    },
    /// The newest send requests were withdrawn: by `ibv_wr_abort`, or because another request of
    /// their list was refused.
    SendsWithdrawn {
        /// The queue pair.
        qp: ObjectId,
        /// Number of withdrawn requests.
        count: usize,
    },
    /// A receive request was posted.
    PostedRecv {
        /// The queue pair, or the shared receive queue.
        queue: ObjectId,
        /// The request as the program posted it.
        request: &'a RecvRequest<'a>,
    },
    /// A post was refused.
    PostRefused {
        /// The queue pair, or the shared receive queue.
        queue: ObjectId,
        /// Send or receive side.
        side: Side,
        /// The identifier of the request.
        wr_id: u64,
        /// Bytes of inline data in the request.
        inline: usize,
        /// Error that the post returned.
        error: PostError,
    },
    /// The card wrote a completion.
    Completed {
        /// The queue pair.
        qp: ObjectId,
        /// Queue of the completion.
        side: Side,
        /// The completion as the card wrote it.
        cqe: &'a Cqe,
    },
    /// The program polled a completion.
    Polled {
        /// The completion queue.
        cq: ObjectId,
        /// The polled completion.
        cqe: &'a Cqe,
    },
    /// A scatter/gather list could not be read or written.
    LocalFault {
        /// The queue pair.
        qp: ObjectId,
        /// Queue of the request.
        side: Side,
        /// The whole scatter/gather list.
        sges: &'a [Sge],
        /// Needed access: `LOCAL_WRITE`, or empty for reading.
        access: Access,
        /// Reason of the failure.
        error: MemError,
    },
    /// A peer's request could not access the memory of a remote key.
    RemoteFault {
        /// The queue pair that executes the request.
        qp: ObjectId,
        /// Remote key in the peer's request.
        rkey: RKey,
        /// The remote address in the request.
        va: u64,
        /// Length in bytes.
        len: u64,
        /// Right that the request needs.
        access: Access,
        /// Reason of the refusal.
        error: MemError,
    },
    /// The bytes of a request differ from those posted. A source is compared when the card is done
    /// with it, before its completion; a destination when the card begins to write.
    BytesChanged {
        /// The queue pair.
        qp: ObjectId,
        /// Queue of the request.
        side: Side,
        /// The identifier of the request.
        wr_id: u64,
    },
    /// The card wrote memory of the program, for a local request or for a peer's.
    Written {
        /// Address of the memory.
        addr: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The card executed an atomic of a peer.
    Atomic {
        /// The queue pair that executed it.
        qp: ObjectId,
        /// The remote key in the request.
        rkey: RKey,
        /// The remote address in the request.
        va: u64,
        /// Local address of the word.
        addr: u64,
        /// Value before the atomic.
        old: u64,
        /// Value after the atomic.
        new: u64,
    },
    /// A peer uses a right of a region for the first time.
    FirstUse {
        /// The remote key of the region.
        rkey: RKey,
        /// The right, one bit.
        right: Access,
    },
    /// A peer's request needs a right that the queue pair does not grant.
    MissingRight {
        /// The queue pair that would execute the request.
        qp: ObjectId,
        /// The right, one bit.
        right: Access,
    },
    /// A memory window was bound.
    Bound {
        /// The queue pair that executed the request.
        qp: ObjectId,
        /// The range and rights of the binding.
        bind: &'a Bind,
    },
    /// A request invalidated the key of a memory window.
    Invalidated {
        /// The queue pair whose request, or whose peer's request, invalidated the key.
        qp: ObjectId,
        /// Remote key that is no longer valid.
        rkey: RKey,
    },
    /// A packet was dropped.
    Dropped {
        /// Destination queue pair.
        qp: ObjectId,
        /// Reason for the drop.
        reason: DropReason,
        /// The packet; `None` for a raw frame or a packet that arrived in another process.
        packet: Option<DroppedPacket>,
    },
    /// A packet of a connection is refused because of the length of its payload.
    WrongLength {
        /// Destination queue pair.
        qp: ObjectId,
        /// The request in the packet.
        request: &'a Request,
        /// Length of the payload in bytes.
        len: usize,
    },
    /// A READ or an atomic is refused because too many are outstanding.
    TooManyReads {
        /// Destination queue pair.
        qp: ObjectId,
    },
    /// A UC or UD message arrived while no receive was posted. roxe lets it wait a moment; a card
    /// drops it.
    MessageWaits {
        /// Destination queue pair.
        qp: ObjectId,
    },
    /// A queue pair retransmitted, after a loss or an RNR NAK.
    Retried {
        /// The queue pair.
        qp: ObjectId,
        /// Number of retries by cause.
        counts: RetryCounts,
    },
    /// The card moved a queue pair to another state after an error.
    StateChanged {
        /// The queue pair.
        qp: ObjectId,
        /// The new state.
        state: QpState,
    },
    /// An asynchronous event was queued for the program.
    AsyncEventQueued {
        /// Source of the event.
        source: ObjectId,
        /// Kind of the event.
        kind: &'a dyn Debug,
    },
    /// An event of the connection manager was queued for the program.
    CmEventQueued {
        /// The `rdma_cm_id`.
        id: ObjectId,
        /// Kind of the event.
        kind: &'a dyn Debug,
        /// Status of the event.
        status: i32,
    },
    /// A call was refused because of an argument that no card accepts.
    UndefinedValue {
        /// Name of the verb.
        call: &'static str,
        /// Name of the argument, or of the field of a structure.
        argument: &'static str,
        /// Value that the program passed.
        value: u64,
        /// Description of the accepted values.
        accepted: &'static str,
    },
    /// A path was refused because its source and destination are of different address families.
    FamiliesDiffer {
        /// Source address.
        sgid: Gid,
        /// Index of the source in the GID table of the port.
        sgid_index: u8,
        /// Destination address.
        dgid: Gid,
    },
    /// The program requested an event with the next completion.
    Armed {
        /// The completion queue.
        cq: ObjectId,
        /// True if the next completion raises the event. False if only a solicited completion does,
        /// or if moderation may delay the event.
        any: bool,
        /// Completions in the queue for which no event is due.
        missed: usize,
    },
    /// A completion event was queued for the program.
    CqEventQueued {
        /// The completion queue.
        cq: ObjectId,
    },
    /// The number of completions in a completion queue that can overrun, after the card appended or
    /// dropped some.
    CqFillLevel {
        /// The completion queue.
        cq: ObjectId,
        /// Number of unpolled completions.
        unpolled: usize,
        /// Capacity of the completion queue in completions.
        capacity: usize,
    },
    /// A completion queue overflowed.
    Overrun {
        /// The completion queue.
        cq: ObjectId,
    },
    /// A thread begins to wait for events of a channel that has none.
    Waits {
        /// The channel for which the thread waits.
        channel: ObjectId,
    },
    /// A thread has waited for events of a channel for a second.
    StillWaits {
        /// The channel for which the thread waits.
        channel: ObjectId,
    },
    /// The memory of a region was unmapped before its deregistration; the address may hold another
    /// mapping now.
    Unmapped {
        /// The memory region.
        mr: ObjectId,
    },
    /// A thread sleeps on a channel without events, while a completion queue of the channel holds
    /// completions and was not polled for a second.
    SleepsWithCompletions {
        /// The completion queue.
        cq: ObjectId,
        /// Thread id of the kernel.
        thread: i32,
        /// Name of the blocking call.
        call: &'static str,
    },
    /// Events have been queued in a channel for a second, while the thread that should read them
    /// sleeps.
    EventsUnread {
        /// The channel; the context for asynchronous events.
        channel: ObjectId,
        /// Source of the oldest event.
        source: ObjectId,
        /// Number of queued events.
        count: usize,
    },
    /// A fatal asynchronous event was not read for a second.
    AsyncEventUnread {
        /// Source of the event.
        source: ObjectId,
        /// Kind of the event.
        kind: &'a dyn Debug,
    },
    /// A destroy call has waited for some seconds, because events are not acknowledged.
    WaitsForAcks {
        /// The object, if it is one that the checker knows.
        object: Option<ObjectId>,
        /// Kind of events, in words.
        kind: &'static str,
        /// Number of events that the program read and did not acknowledge.
        unacked: u64,
    },
    /// The program forks.
    Fork,
    /// More events were acknowledged than the program had read.
    AckedTooMany {
        /// The object, if it is one that the checker knows.
        object: Option<ObjectId>,
        /// Kind of events, in words.
        kind: &'static str,
        /// Number of events that the program had read.
        delivered: u64,
        /// Number of events acknowledged.
        acked: u64,
    },
    /// A handle became invalid.
    HandleGone {
        /// The address that the program holds.
        handle: usize,
        /// Name of the structure at that address.
        kind: &'static str,
    },
    /// The program used an invalid handle.
    HandleUsed {
        /// The address that the program passed.
        handle: usize,
    },
    /// The object just created belongs to a library such as librdmacm, so the program cannot
    /// destroy it.
    OwnedByLibrary(ObjectId),
    /// The program ends by `exit`, or returns from `main`.
    Exit,
}

impl<'a> Event<'a> {
    /// Returns the event of a posted or refused send.
    pub fn of_posted_send(qp: ObjectId, request: &'a SendRequest<'a>, posted: &Result<(), PostError>) -> Self {
        match *posted {
            Ok(()) => Self::PostedSend { qp, request },
            Err(error) => {
                let inline = if let SendData::Inline(bytes) = request.data { bytes.len() } else { 0 };
                Self::PostRefused { queue: qp, side: Side::Send, wr_id: request.wr_id, inline, error }
            }
        }
    }

    /// Returns the event of a refused receive.
    pub fn of_refused_recv(queue: ObjectId, request: &RecvRequest<'a>, error: PostError) -> Self {
        Self::PostRefused { queue, side: Side::Recv, wr_id: request.wr_id, inline: 0, error }
    }

    /// Returns true if the program's call emitted this event, and reports show its stack. Polling
    /// is excluded: it is the most frequent call, and its place is obvious.
    pub(crate) const fn is_call(&self) -> bool {
        matches!(
            self,
            Self::Created(..)
                | Self::DestroyBegun(_)
                | Self::Destroyed(_)
                | Self::DestroyRefused(..)
                | Self::Reregistered(..)
                | Self::Modified { .. }
                | Self::ModifyRefused { .. }
                | Self::PostedSend { .. }
                | Self::SendsWithdrawn { .. }
                | Self::PostedRecv { .. }
                | Self::PostRefused { .. }
                | Self::UndefinedValue { .. }
                | Self::FamiliesDiffer { .. }
                | Self::Armed { .. }
                | Self::Waits { .. }
                | Self::WaitsForAcks { .. }
                | Self::Fork
                | Self::AckedTooMany { .. }
                | Self::Unmapped { .. }
                | Self::HandleGone { .. }
                | Self::HandleUsed { .. }
        )
    }
}

/// A dropped packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DroppedPacket {
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// Headers of the packet.
    pub header: Header,
    /// Length of the payload in bytes.
    pub len: usize,
    /// PSN of the next expected request. Dropping an RC packet does not change it.
    pub expected: Psn,
}

/// An object as a verb created it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    /// A context: a device was opened.
    Context,
    /// A protection domain.
    Pd {
        /// The context that it belongs to.
        context: ObjectId,
    },
    /// A completion channel.
    Channel {
        /// The context that it belongs to.
        context: ObjectId,
    },
    /// A completion queue.
    Cq {
        /// The context that it belongs to.
        context: ObjectId,
        /// Channel of its events.
        channel: Option<ObjectId>,
        /// Capacity in completions.
        capacity: u32,
    },
    /// A shared receive queue.
    Srq {
        /// Protection domain.
        pd: ObjectId,
        /// Capacity in requests.
        max_wr: u32,
    },
    /// A queue pair.
    Qp(QpInfo),
    /// A memory region.
    Mr(MrInfo),
    /// A memory window.
    Mw {
        /// Protection domain.
        pd: ObjectId,
        /// Key at allocation. Each binding replaces the lower 8 bits.
        key: u32,
    },
    /// An address handle.
    Ah {
        /// Protection domain.
        pd: ObjectId,
    },
}

/// A queue pair as a verb created it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInfo {
    /// The context that it belongs to.
    pub context: ObjectId,
    /// Protection domain.
    pub pd: ObjectId,
    /// Queue pair number.
    pub qpn: Qpn,
    /// Transport service.
    pub service: Service,
    /// Depths and limits as requested, not as granted.
    pub caps: QpCaps,
    /// True if every send is signaled.
    pub sq_sig_all: bool,
    /// Completion queue of sends.
    pub send_cq: ObjectId,
    /// Completion queue of receives.
    pub recv_cq: ObjectId,
    /// Shared receive queue; `None` if the queue pair has a receive queue of its own.
    pub srq: Option<ObjectId>,
    /// MTU of the port: the maximum payload of a packet in bytes.
    pub port_mtu: u32,
}

/// A memory region as a verb registered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrInfo {
    /// The context that it belongs to.
    pub context: ObjectId,
    /// Protection domain.
    pub pd: ObjectId,
    /// Key for scatter/gather lists.
    pub lkey: u32,
    /// Key for peers.
    pub rkey: u32,
    /// Address of the memory.
    pub addr: u64,
    /// Address that lists and peers use for the first byte.
    pub base: u64,
    /// Length in bytes.
    pub length: u64,
    /// Rights of local and remote requests.
    pub access: Access,
}
