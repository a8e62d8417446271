//! The interface of targets: verbs on the card under test (the far side), and packets to and from
//! it (the near side). `virtual_card` and `agent` implement the traits; [`Extensions`] are
//! optional.
#![allow(missing_docs, reason = "attributes and verbs are named as in libibverbs and librdmacm")]

use roxe_wire::Gid;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// An error that the far side reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Explanation by the card or its agent.
    pub text: String,
    /// Error number of the verb; 0 if the target itself failed.
    pub errno: i32,
}

impl Refused {
    /// Returns an error of the target itself.
    pub fn broken(text: impl Into<String>) -> Self {
        Self { text: text.into(), errno: 0 }
    }

    pub(crate) fn unsupported(text: impl Into<String>) -> Self {
        Self { text: text.into(), errno: libc::EOPNOTSUPP }
    }

    /// Returns true if the card does not support the verb or its arguments, or if its host has too
    /// few file descriptors.
    pub(crate) const fn is_unsupported(&self) -> bool {
        matches!(self.errno, libc::EOPNOTSUPP | libc::ENOSYS | libc::EMFILE | libc::ENFILE)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        if self.errno == 0 { Ok(()) } else { write!(f, " (errno {})", self.errno) }
    }
}

pub type Answer<T> = Result<T, Refused>;

/// Identifies an object of the far side.
pub type Handle = u64;

/// Parameters of a connection request or reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnParam {
    pub private_data: Vec<u8>,
    /// Responder resources and initiator depth: READs and atomics that the far side serves and
    /// issues.
    pub depths: [u8; 2],
    pub retry_cnt: u8,
    pub rnr_retry: u8,
}

/// An event of the connection manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionEvent {
    /// Name in `enum rdma_cm_event_type` without `RDMA_CM_EVENT_`.
    pub name: String,
    /// 0, a reason, or a negative errno.
    pub status: i64,
    /// The identifier; for a request, the new one.
    pub id: Handle,
    /// The listening identifier of a request.
    pub listener: Option<Handle>,
    pub private_data: Vec<u8>,
    /// Depths, or queue pair and Q_Key of a datagram service, by the names of [`REPORTED`].
    pub numbers: BTreeMap<&'static str, u64>,
}

/// Numbers of events of the connection manager.
pub const REPORTED: [&str; 4] = ["responder_resources", "initiator_depth", "qpn", "qkey"];

/// Numbers of [`Attributes`].
pub const QUERIED: [&str; 14] = [
    "mtu",
    "qkey",
    "rq_psn",
    "sq_psn",
    "dest_qpn",
    "rd_atomic",
    "dest_rd_atomic",
    "rnr_timer",
    "timeout",
    "retry_cnt",
    "rnr_retry",
    "alt_timeout",
    "traffic_class",
    "hop_limit",
];

/// Attributes of a queue pair, as the card reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Numbers by the names of [`QUERIED`].
    pub numbers: BTreeMap<&'static str, u64>,
    /// `enum ibv_access_flags`.
    pub access: u32,
    /// MIGRATED, REARM or ARMED.
    pub migration: String,
}

fn not_offered<T>(what: &str) -> Answer<T> {
    Err(Refused::unsupported(format!("this target has no {what}")))
}

/// Optional verbs, and functions of librdmacm.
#[allow(unused_variables, reason = "nothing is offered by default")]
pub trait Extensions {
    /// Listens at the address of the card in port space TCP or UDP, with room for this many
    /// requests that the program has not answered. Returns handle and port.
    fn listen(&mut self, space: &str, backlog: Option<u32>) -> Answer<(Handle, u16)> {
        not_offered("connection manager")
    }
    /// Requests a connection from the near side to the service at this port.
    fn connect(&mut self, space: &str, port: u16, qp: Handle, conn_param: &ConnParam) -> Answer<Handle> {
        not_offered("connection manager")
    }
    /// Accepts a request and brings the queue pair to `state`.
    fn accept(&mut self, id: Handle, qp: Handle, state: &str, conn_param: &ConnParam) -> Answer<()> {
        not_offered("connection manager")
    }
    fn establish(&mut self, id: Handle, qp: Handle) -> Answer<()> {
        not_offered("connection manager")
    }
    fn reject(&mut self, id: Handle, private_data: &[u8]) -> Answer<()> {
        not_offered("connection manager")
    }
    fn disconnect(&mut self, id: Handle) -> Answer<()> {
        not_offered("connection manager")
    }
    /// Reports `IBV_EVENT_COMM_EST` (`rdma_notify`).
    fn notify(&mut self, id: Handle) -> Answer<()> {
        not_offered("connection manager")
    }
    fn destroy_id(&mut self, id: Handle) -> Answer<()> {
        not_offered("connection manager")
    }
    /// Returns the events since the last call.
    fn connection_events(&mut self) -> Answer<Vec<ConnectionEvent>> {
        not_offered("connection manager")
    }
    /// Requests an event for the next completion, or for the next solicited one.
    fn arm(&mut self, cq: Handle, solicited: bool) -> Answer<()> {
        not_offered("completion events")
    }
    /// Returns true if the requested event was raised since the last call.
    fn is_woken(&mut self, cq: Handle) -> Answer<bool> {
        not_offered("completion events")
    }
    /// Changes the number of entries of a completion queue.
    fn resize(&mut self, cq: Handle, entries: u32) -> Answer<()> {
        not_offered("completion queues of another size")
    }
    fn attributes(&mut self, qp: Handle) -> Answer<Attributes> {
        not_offered("queries of attributes")
    }
    /// Changes the rights of a region. Returns L_Key and R_Key.
    fn reregister(&mut self, mr: Handle, access: u32) -> Answer<[u32; 2]> {
        not_offered("reregistered memory")
    }
    /// Arms the limit of a shared receive queue (`ibv_modify_srq`).
    fn set_limit(&mut self, srq: Handle, limit: u32) -> Answer<()> {
        not_offered("SRQ limits")
    }
    fn open_xrcd(&mut self) -> Answer<Handle> {
        not_offered("XRC")
    }
    /// Returns handle and number.
    fn create_xrc_srq(&mut self, pd: Option<Handle>, xrcd: Handle, cq: Handle) -> Answer<(Handle, u32)> {
        not_offered("XRC")
    }
    /// Creates a shared receive queue with room for this many tags. Returns its handle and that of
    /// its completion queue.
    fn create_tag_srq(&mut self, pd: Option<Handle>, tags: u32) -> Answer<(Handle, Handle)> {
        not_offered("tag matching")
    }
    /// Posts an operation on tags. Returns the handle of the tag.
    fn post_tag(&mut self, srq: Handle, work: &TagWork) -> Answer<u32> {
        not_offered("tag matching")
    }
    /// Returns handle and R_Key.
    fn alloc_window(&mut self, kind: u32, pd: Option<Handle>) -> Answer<(Handle, u32)> {
        not_offered("memory windows")
    }
    /// Binds a window and returns the new R_Key.
    fn bind_window(&mut self, qp: Handle, window: Handle, mr: Handle, bound: Bound) -> Answer<u32> {
        not_offered("memory windows")
    }
    fn set_member(&mut self, qp: Handle, group: Gid, joins: bool) -> Answer<()> {
        not_offered("multicast groups")
    }
}

/// A binding of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Offset in the region, in bytes.
    pub at: u64,
    pub length: u64,
    /// `enum ibv_access_flags`.
    pub access: u32,
    pub wr_id: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub mr: Handle,
    pub addr: u64,
    pub lkey: u32,
    pub rkey: u32,
}

/// Attributes to create a queue pair with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewQp {
    /// RC, UC, UD, XRC_SEND or XRC_RECV.
    pub service: String,
    /// Protection domain; `None` for the default one.
    pub pd: Option<Handle>,
    /// Completion queue for sends and receives.
    pub cq: Handle,
    pub srq: Option<Handle>,
    /// XRC domain of an XRC_RECV queue pair.
    pub xrcd: Option<Handle>,
    /// Limits: sends, receives, scatter/gather elements, inline bytes.
    pub caps: [u32; 4],
}

/// Attributes of a modify; `None` leaves one unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// RESET, INIT, RTR, RTS, SQD or ERR.
    pub to: String,
    /// `enum ibv_access_flags`.
    pub access: Option<u32>,
    pub qkey: Option<u32>,
    /// In bytes.
    pub path_mtu: Option<u32>,
    /// Queue pair number and address of the near side.
    pub dest: Option<(u32, Gid)>,
    /// IPv4 TOS or IPv6 traffic class of the path to the near side.
    pub traffic_class: u8,
    pub rq_psn: Option<u32>,
    pub sq_psn: Option<u32>,
    pub timeout: Option<u8>,
    pub retry_cnt: Option<u8>,
    pub rnr_retry: Option<u8>,
    pub min_rnr_timer: Option<u8>,
    /// Outstanding READs and atomics as requester.
    pub max_rd_atomic: Option<u8>,
    /// Outstanding READs and atomics as responder.
    pub max_dest_rd_atomic: Option<u8>,
    /// True if SQ_DRAINED is raised in SQD.
    pub notify: bool,
    /// Hop limit of the path that is set; 64 by default.
    pub hop_limit: Option<u8>,
    /// Remote address of the alternate path, and the code of its ACK timeout.
    pub alternate: Option<(Gid, u8)>,
    /// MIGRATED, REARM or ARMED.
    pub migration: Option<String>,
}

/// A scatter/gather element; its values may be invalid on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub addr: u64,
    pub len: u32,
    pub lkey: u32,
}

/// A send work request.
#[derive(Clone, Debug, Default)]
pub struct Work {
    pub wr_id: u64,
    /// Name in `enum ibv_wr_opcode` without `IBV_WR_`.
    pub opcode: String,
    /// SIGNALED, FENCE, SOLICITED.
    pub flags: Vec<&'static str>,
    pub pieces: Vec<Piece>,
    /// Inline data instead of scatter/gather elements.
    pub inline: Option<Vec<u8>>,
    pub remote_addr: u64,
    /// R_Key of the remote memory, or the key to invalidate.
    pub rkey: u32,
    /// Immediate data, in host byte order.
    pub imm: u32,
    /// Operand of an atomic: to compare with, or to add.
    pub compare_add: u64,
    pub swap: u64,
    /// Destination of a datagram: address, queue pair, Q_Key.
    pub datagram: Option<(Gid, u32, u32)>,
    /// IPv4 TOS or IPv6 traffic class of a datagram.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit of a datagram.
    pub hop_limit: u8,
    /// Number of the shared receive queue of an XRC request.
    pub srqn: u32,
}

/// An operation on the tags of a shared receive queue.
#[derive(Clone, Debug, Default)]
pub struct TagWork {
    /// ADD, DEL or SYNC.
    pub operation: &'static str,
    /// Id of the operation.
    pub wr_id: u64,
    /// Id of the message that matches the new tag.
    pub recv_id: u64,
    /// The new tag.
    pub tag: u64,
    /// Significant bits of the new tag.
    pub mask: u64,
    /// Destination of the message.
    pub pieces: Vec<Piece>,
    /// The tag to remove.
    pub handle: u32,
    /// Number of unexpected messages that the program reports as handled.
    pub unexpected: Option<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completed {
    pub wr_id: u64,
    /// Name in `enum ibv_wc_status` without `IBV_WC_`.
    pub status: String,
    /// Name in `enum ibv_wc_opcode` without `IBV_WC_`.
    pub opcode: String,
    pub byte_len: u32,
    pub imm: Option<u32>,
    /// R_Key that the sender invalidated.
    pub invalidated: Option<u32>,
    /// Source queue pair of a datagram.
    pub src_qp: u32,
    /// Tag and context of a message, if the completion queue reports them.
    pub tag: Option<(u64, u32)>,
    /// `enum ibv_wc_flags`, as far as known.
    pub flags: u32,
    pub qpn: u32,
}

impl fmt::Display for Completed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wr_id, status, opcode, byte_len, imm, invalidated, src_qp, tag, flags, qpn: _ } = self;
        write!(f, "id={wr_id} status={status}")?;
        if status != "SUCCESS" {
            return Ok(());
        }
        write!(f, " opcode={opcode} bytes={byte_len}")?;
        imm.map_or(Ok(()), |imm| write!(f, " imm={imm:#x}"))?;
        invalidated.map_or(Ok(()), |key| write!(f, " invalidated={key:#x}"))?;
        tag.map_or(Ok(()), |(tag, context)| write!(f, " tag={tag:#x} context={context:#x} flags={flags:#x}"))?;
        if *src_qp == 0 { Ok(()) } else { write!(f, " src_qp={src_qp:#x}") }
    }
}

/// The object that an asynchronous event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Qp(Handle),
    Srq(Handle),
    /// A completion queue, the port, the device, or a destroyed object.
    Other,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// As in `enum ibv_event_type`, without `IBV_EVENT_`.
    pub name: String,
    pub of: Source,
}

/// State of the far side.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// State and completions of each queue pair.
    pub queues: Vec<(String, Vec<Completed>)>,
    /// Events since the last call.
    pub events: Vec<Event>,
    /// First bytes of regions.
    pub memory: Vec<Vec<u8>>,
}

/// Verbs of the card under test.
pub trait FarSide {
    fn alloc_pd(&mut self) -> Answer<Handle>;
    /// Registers memory. The address of byte `edge` is a multiple of 4 GiB.
    fn register(&mut self, length: u64, access: u32, fill: u8, pd: Option<Handle>, edge: Option<u64>)
    -> Answer<Region>;
    fn deregister(&mut self, mr: Handle) -> Answer<()>;
    fn create_cq(&mut self, cqe: u32) -> Answer<Handle>;
    fn create_srq(&mut self, pd: Option<Handle>) -> Answer<Handle>;
    /// Returns handle and number.
    fn create_qp(&mut self, new: &NewQp) -> Answer<(Handle, u32)>;
    fn modify_qp(&mut self, qp: Handle, change: &Change) -> Answer<()>;
    /// Returns the state, as in [`Change::to`].
    fn query_qp(&mut self, qp: Handle) -> Answer<String>;
    fn destroy_qp(&mut self, qp: Handle) -> Answer<()>;
    fn post_send(&mut self, qp: Handle, work: &Work) -> Answer<()>;
    fn post_recv(&mut self, qp: Handle, wr_id: u64, pieces: &[Piece]) -> Answer<()>;
    fn post_srq_recv(&mut self, srq: Handle, wr_id: u64, pieces: &[Piece]) -> Answer<()>;
    fn poll(&mut self, cq: Handle) -> Answer<Vec<Completed>>;
    fn read(&mut self, mr: Handle, at: u64, len: u64) -> Answer<Vec<u8>>;
    fn write(&mut self, mr: Handle, at: u64, bytes: &[u8]) -> Answer<()>;
    /// Reads queue pairs, each with its completion queue, first bytes of regions, and events.
    fn snapshot(&mut self, queues: &[(Handle, Handle)], regions: &[(Handle, u64)]) -> Answer<Snapshot> {
        let queues = queues.iter().map(|(qp, cq)| Ok((self.query_qp(*qp)?, self.poll(*cq)?)));
        let queues = queues.collect::<Answer<_>>()?;
        let memory = regions.iter().map(|(mr, len)| self.read(*mr, 0, *len)).collect::<Answer<_>>()?;
        Ok(Snapshot { queues, memory, events: self.events()? })
    }
    /// Returns asynchronous events since the last call.
    fn events(&mut self) -> Answer<Vec<Event>>;
}

/// A packet on the near side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Addresses and IP header.
    pub net: roxe_wire::NetHeader,
    /// Bytes from the BTH to the ICRC.
    pub bytes: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct Card {
    pub name: String,
    /// Address of the card.
    pub address: Gid,
    /// Addresses of the near side and of the stranger, which has no connections; zero if missing.
    pub near: [Gid; 2],
    /// First queue pair number of the near side.
    pub first_near: u32,
    /// GUID of the near side in messages of the connection manager.
    pub guid: u64,
    /// UDP source port of the near side.
    pub near_port: u16,
    /// Longest delay before the near side sees a packet, and precision of its times.
    pub jitter: Duration,
    /// Largest path MTU of the port, in bytes.
    pub max_mtu: u32,
    /// Longest datagram that the near side can send, in bytes of UDP payload.
    pub max_datagram: usize,
}

/// A target of scripts.
pub trait Target: FarSide + Extensions {
    /// Returns the card as it is over this address family; `None` if the card has no such address.
    fn card(&self, ipv6: bool) -> Option<Card>;
    /// Returns names and values that identify the card in a report, such as its driver.
    fn identity(&self) -> Vec<(String, String)> {
        Vec::new()
    }
    /// Begins a case over addresses of this family, and frees all objects of the previous one.
    /// Fails if the target cannot be used.
    fn begin(&mut self, ipv6: bool) -> Answer<()>;
    /// Returns the time on the clock of the target.
    fn now(&self) -> Duration;
    /// Sends a packet from the near side. Fails if the near side fails.
    fn send(&mut self, datagram: &Datagram) -> Answer<()>;
    /// Returns the next packet for the near side, and the time of its arrival; `None` after
    /// `until`. Fails if the near side fails.
    fn receive(&mut self, until: Duration) -> Answer<Option<(Duration, Datagram)>>;
    /// Returns true if no further case can run.
    fn is_lost(&self) -> bool {
        false
    }
    /// Waits between two queries of the far side, at most until `until`.
    fn pause(&mut self, until: Duration);
    /// Frees all objects; from then on, runs cases as fast as possible. The target reuses objects,
    /// and may report refusals late, except those of work requests. Fails if the target cannot be
    /// used.
    fn pipeline(&mut self) -> Answer<()> {
        Ok(())
    }
    /// Gives the next case of a pipeline new objects. Earlier objects stay, because some cards take
    /// a minute to destroy broken ones. Fails if the target cannot be used.
    fn renew(&mut self) -> Answer<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_for_lack_of_file_descriptors_is_unsupported() {
        let refused = |errno| Refused { text: "ibv_create_comp_channel".into(), errno };
        assert!([libc::EMFILE, libc::ENFILE].iter().all(|errno| refused(*errno).is_unsupported()));
        assert!(!refused(libc::EINVAL).is_unsupported());
    }
}
