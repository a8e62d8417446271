//! The facts that rules look at: verbs that a program calls, and their results; objects as they
//! were made; packets that were dropped.
//!
//! Each fact is reported where it happens, without a judgement, and those of one object in their
//! order. Pure data.

use roxe_base::error::Error;
use roxe_base::uses::ObjectId;
use roxe_transport::cx::{MemError, Side};
use roxe_transport::qp::{AttrMask, DropReason, PostError, QpAttr, QpCaps, QpState, RetryCounts, Service};
use roxe_transport::wr::{Access, Bind, Cqe, RecvRequest, SendData, SendRequest, Sge};
use roxe_wire::{Gid, Header, Psn, Qpn, RKey, Request};
use std::fmt::Debug;

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// An object came to be.
    Created(ObjectId, Made),
    /// A region is about to go: until `Destroyed` or `DestroyRefused`, other threads may find that
    /// its keys are dead.
    DestroyBegun(ObjectId),
    /// It is gone.
    Destroyed(ObjectId),
    /// It stays, because others use it.
    DestroyRefused(ObjectId, &'a Error),
    /// A region is registered anew, under the same keys.
    Reregistered(ObjectId, Memory),
    /// Attributes of a queue pair changed.
    Modified {
        /// The queue pair.
        qp: ObjectId,
        /// What the program passed.
        attr: &'a QpAttr,
        /// Which of it counts.
        mask: AttrMask,
    },
    /// They did not.
    ModifyRefused {
        /// The queue pair.
        qp: ObjectId,
        /// What the program passed.
        attr: &'a QpAttr,
        /// Which of it counts.
        mask: AttrMask,
        /// Why.
        error: &'a Error,
    },
    /// A send request is in the queue.
    PostedSend {
        /// The queue pair.
        qp: ObjectId,
        /// The request.
        request: &'a SendRequest<'a>,
    },
    /// The last send requests that were posted are not in the queue any more: the program has
    /// withdrawn them, or one of their list was refused (`man ibv_wr_abort`).
    TakenBack {
        /// The queue pair.
        qp: ObjectId,
        /// How many.
        count: usize,
    },
    /// A receive request is in the queue.
    PostedRecv {
        /// The queue pair, or the shared receive queue.
        queue: ObjectId,
        /// The request.
        request: &'a RecvRequest<'a>,
    },
    /// A request was not taken.
    PostRefused {
        /// The queue pair, or the shared receive queue.
        queue: ObjectId,
        /// Which queue of it.
        side: Side,
        /// The identifier of the request.
        wr_id: u64,
        /// Its bytes of inline data.
        inline: usize,
        /// Why.
        error: PostError,
    },
    /// The card wrote a completion.
    Completed {
        /// The queue pair.
        qp: ObjectId,
        /// Of which queue.
        side: Side,
        /// What the program will find.
        cqe: &'a Cqe,
    },
    /// The program took a completion.
    Polled {
        /// The completion queue.
        cq: ObjectId,
        /// What the program found.
        cqe: &'a Cqe,
    },
    /// A local list could not be read or written.
    LocalFault {
        /// The queue pair.
        qp: ObjectId,
        /// Of which queue the request is.
        side: Side,
        /// The whole list.
        sges: &'a [Sge],
        /// What the card was about to do: `LOCAL_WRITE`, or nothing for reading.
        access: Access,
        /// Why it could not.
        error: MemError,
    },
    /// A peer's request did not get at the memory behind a remote key.
    RemoteFault {
        /// The queue pair that executes the request.
        qp: ObjectId,
        /// The key.
        rkey: RKey,
        /// First address.
        va: u64,
        /// Bytes.
        len: u64,
        /// The right that the request needs.
        access: Access,
        /// Why it did not.
        error: MemError,
    },
    /// The bytes of a request are no longer those that were posted: of a source when the card is
    /// done with it, which is told before its completion, of a sink when the card begins to write.
    BytesChanged {
        /// The queue pair.
        qp: ObjectId,
        /// Of which queue the request is.
        side: Side,
        /// The identifier of the request.
        wr_id: u64,
    },
    /// The card wrote memory of the program, for a request of its own or of a peer.
    Written {
        /// Where the memory is.
        addr: u64,
        /// Bytes.
        len: u64,
    },
    /// The card executed an atomic of a peer.
    Atomic {
        /// The queue pair that executed it.
        qp: ObjectId,
        /// The key that the peer names.
        rkey: RKey,
        /// The address that it names.
        va: u64,
        /// Where the word is.
        addr: u64,
        /// What it held.
        found: u64,
        /// What it holds since.
        left: u64,
    },
    /// A peer uses a right of a region for the first time.
    FirstUse {
        /// Its key for peers.
        rkey: RKey,
        /// The right.
        right: Access,
    },
    /// A peer's request needs a right that the queue pair does not grant.
    Denied {
        /// The queue pair that would execute the request.
        qp: ObjectId,
        /// The right.
        right: Access,
    },
    /// A memory window opens a part of a region.
    Bound {
        /// The queue pair whose request did it.
        qp: ObjectId,
        /// What it opens.
        bind: &'a Bind,
    },
    /// The key of a memory window is dead by a request.
    Invalidated {
        /// The queue pair whose request did it, or that of its peer.
        qp: ObjectId,
        /// The key.
        rkey: RKey,
    },
    /// A packet was not taken.
    Dropped {
        /// The queue pair it came for.
        qp: ObjectId,
        /// Why.
        reason: DropReason,
        /// The packet, unless it is a frame or came in another process.
        packet: Option<Arrived>,
    },
    /// A packet of a connection is refused because of the length of its payload.
    WrongLength {
        /// The queue pair it came for.
        qp: ObjectId,
        /// What it asks for.
        request: &'a Request,
        /// Bytes of its payload.
        len: usize,
    },
    /// A READ or an atomic is refused because too many are outstanding.
    TooManyReads {
        /// The queue pair it came for.
        qp: ObjectId,
    },
    /// A message of UC or UD found no receive. It waits a moment for one, which no card does.
    MessageWaits {
        /// The queue pair it came for.
        qp: ObjectId,
    },
    /// Packets were lost, or a peer was not ready.
    Retried {
        /// The queue pair.
        qp: ObjectId,
        /// How often, and how that was seen.
        counts: RetryCounts,
    },
    /// The card has moved a queue pair to another state, because something failed.
    StateChanged {
        /// The queue pair.
        qp: ObjectId,
        /// Its state now.
        state: QpState,
    },
    /// An asynchronous event waits for the program.
    Raised {
        /// What it happened to.
        source: ObjectId,
        /// What happened.
        kind: &'a dyn Debug,
    },
    /// An event of the connection manager waits for the program.
    Connection {
        /// The identifier.
        id: ObjectId,
        /// What happened.
        kind: &'a dyn Debug,
        /// How it ended.
        status: i32,
    },
    /// An argument was refused that no card accepts.
    Garbage {
        /// The function.
        call: &'static str,
        /// The argument, or the field of a structure.
        argument: &'static str,
        /// What it holds.
        value: u64,
        /// What it may hold.
        accepted: &'static str,
    },
    /// An address was refused because its two ends are of different families.
    FamiliesDiffer {
        /// The source.
        sgid: Gid,
        /// Its index in the table of the port.
        sgid_index: u8,
        /// The destination.
        dgid: Gid,
    },
    /// The program asked for an event with the next completion.
    Armed {
        /// The completion queue.
        cq: ObjectId,
        /// Whichever comes raises it, and at once.
        any: bool,
        /// Completions that lay there and that no event stands for.
        missed: usize,
    },
    /// It gets that event.
    Announced {
        /// The completion queue.
        cq: ObjectId,
    },
    /// A completion queue has another number of completions that nobody polled.
    Held {
        /// The completion queue.
        cq: ObjectId,
        /// How many.
        held: usize,
        /// How many it takes.
        capacity: usize,
    },
    /// A completion found no room.
    Overrun {
        /// The completion queue.
        cq: ObjectId,
    },
    /// A thread of the program is about to wait for the events of a channel, and there are none.
    Waits {
        /// The channel.
        channel: ObjectId,
    },
    /// It waits for a second now.
    StillWaits {
        /// The channel.
        channel: ObjectId,
    },
    /// The memory of a region that is about to be deregistered was unmapped before; what is there
    /// now, if anything, is another mapping.
    Unmapped {
        /// The region.
        mr: ObjectId,
    },
    /// A thread sleeps until a channel has an event, and none is there, while a queue of it was not
    /// polled for a second and has completions.
    Sleeps {
        /// The completion queue.
        cq: ObjectId,
        /// The kernel's number of the thread.
        thread: i32,
        /// The call that it sleeps in.
        call: &'static str,
    },
    /// Events lie in a channel for a second, and a thread sleeps that should have taken them.
    Unread {
        /// The channel; the context, if they are asynchronous.
        channel: ObjectId,
        /// What the oldest happened to.
        source: ObjectId,
        /// How many lie there.
        count: usize,
    },
    /// An asynchronous event that an object or the device does not survive lies there for a second.
    AsyncUnread {
        /// What it happened to.
        source: ObjectId,
        /// What happened.
        kind: &'a dyn Debug,
    },
    /// A call that destroys an object waits for events to be acknowledged, for seconds now.
    WaitsForAcks {
        /// The object, if it is one that the checker knows.
        object: Option<ObjectId>,
        /// What the events are.
        what: &'static str,
        /// Events that the program took and did not acknowledge.
        left: u64,
    },
    /// The program forks.
    Fork,
    /// Events were acknowledged that the program had not taken.
    AckedTooMany {
        /// The object, if it is one that the checker knows.
        object: Option<ObjectId>,
        /// What the events are.
        what: &'static str,
        /// Events that were to be acknowledged.
        taken: u64,
        /// Events that were.
        acked: u64,
    },
    /// The program may not use a handle any more.
    HandleGone {
        /// The address that the program holds.
        handle: usize,
        /// The structure there.
        kind: &'static str,
    },
    /// It used such a handle.
    HandleUsed {
        /// The address that the program passed.
        handle: usize,
    },
    /// The object that was just made is not the program's, which therefore cannot destroy it.
    MadeByLibrary(ObjectId),
    /// The program ends by `exit`, or returns from `main`.
    Exit,
}

impl<'a> Event<'a> {
    /// That a send was posted, or that it was not.
    pub fn of_posted_send(qp: ObjectId, request: &'a SendRequest<'a>, posted: &Result<(), PostError>) -> Self {
        match *posted {
            Ok(()) => Self::PostedSend { qp, request },
            Err(error) => {
                let inline = if let SendData::Inline(bytes) = request.data { bytes.len() } else { 0 };
                Self::PostRefused { queue: qp, side: Side::Send, wr_id: request.wr_id, inline, error }
            }
        }
    }

    /// That a receive was not posted.
    pub fn of_refused_recv(queue: ObjectId, request: &RecvRequest<'a>, error: PostError) -> Self {
        Self::PostRefused { queue, side: Side::Recv, wr_id: request.wr_id, inline: 0, error }
    }

    /// Whether it is a call of the program that reports want to show. Polling is not, as that is
    /// what programs do most, and where they do it is no riddle.
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
                | Self::TakenBack { .. }
                | Self::PostedRecv { .. }
                | Self::PostRefused { .. }
                | Self::Garbage { .. }
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

/// A packet that was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// Its headers.
    pub header: Header,
    /// Bytes of its payload.
    pub len: usize,
    /// The PSN of the next request in order; on RC a packet that is not taken does not change it.
    pub expected: Psn,
}

/// An object that a verb has made, as it was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
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
        /// Where its events go.
        channel: Option<ObjectId>,
        /// Completions that it holds.
        capacity: u32,
    },
    /// A shared receive queue.
    Srq {
        /// The domain.
        pd: ObjectId,
        /// Requests that it holds.
        max_wr: u32,
    },
    /// A queue pair.
    Qp(Pair),
    /// A region.
    Mr(Memory),
    /// A memory window.
    Mw {
        /// The domain.
        pd: ObjectId,
        /// The key it was allocated with. Each binding replaces the lower 8 bits.
        key: u32,
    },
    /// An address handle.
    Ah {
        /// The domain.
        pd: ObjectId,
    },
}

/// A queue pair, as it was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The context.
    pub context: ObjectId,
    /// The domain.
    pub pd: ObjectId,
    /// Its number.
    pub qpn: Qpn,
    /// Its transport service.
    pub service: Service,
    /// Depths and limits as the program asked for them, not as they were granted.
    pub caps: QpCaps,
    /// Every send reports its completion.
    pub sq_sig_all: bool,
    /// Where sends complete.
    pub send_cq: ObjectId,
    /// Where receives complete.
    pub recv_cq: ObjectId,
    /// Where receives come from instead of an own queue.
    pub srq: Option<ObjectId>,
    /// Payload bytes of the largest packet of its port.
    pub port_mtu: u32,
}

/// A region, as it is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// The context.
    pub context: ObjectId,
    /// The domain.
    pub pd: ObjectId,
    /// Key for local lists.
    pub lkey: u32,
    /// Key for peers.
    pub rkey: u32,
    /// Where the memory is.
    pub addr: u64,
    /// The address by which lists and peers name its first byte.
    pub base: u64,
    /// Bytes.
    pub length: u64,
    /// Rights.
    pub access: Access,
}
