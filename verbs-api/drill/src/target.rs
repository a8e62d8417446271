//! What a script needs of a target: a card that obeys verbs (the far side), and a way for packets
//! to and from it (the near side). Traits and plain data; `virtual_card` and `agent` implement
//! them. [`Extensions`] has what only some cards offer.

use roxe_wire::Gid;
use std::fmt;
use std::time::Duration;

/// Why the far side did not do what it was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What it says.
    pub text: String,
    /// The error number of the verb; 0: none, the target itself cannot be used.
    pub errno: i32,
}

impl Refused {
    /// What no verb is to blame for.
    pub fn broken(text: impl Into<String>) -> Self {
        Self { text: text.into(), errno: 0 }
    }

    /// What the card, or the way to it, does not do at all.
    pub(crate) fn unsupported(text: impl Into<String>) -> Self {
        Self { text: text.into(), errno: libc::EOPNOTSUPP }
    }

    /// Whether the card says that it does not do such things.
    pub(crate) const fn is_unsupported(&self) -> bool {
        matches!(self.errno, libc::EOPNOTSUPP | libc::ENOSYS)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        if self.errno == 0 { Ok(()) } else { write!(f, " (errno {})", self.errno) }
    }
}

/// What the far side answers.
pub type Answer<T> = Result<T, Refused>;

/// An object of the far side.
pub type Handle = u64;

/// What a connection is asked for or accepted with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// For the peer's program.
    pub private_data: Vec<u8>,
    /// READs and atomics that the far side serves, and that it wants to issue.
    pub depths: [u8; 2],
    /// Retries after loss.
    pub retry_cnt: u8,
    /// Retries after RNR NAK.
    pub rnr_retry: u8,
}

/// An event of the connection manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionEvent {
    /// As in `enum rdma_cm_event_type`, without `RDMA_CM_EVENT_`.
    pub name: String,
    /// 0, a reason, or a negative errno.
    pub status: i64,
    /// The identifier that it is about; of a request, the new one.
    pub id: Handle,
    /// Of a request, who listened.
    pub listener: Option<Handle>,
    /// What the peer's program says.
    pub private_data: Vec<u8>,
}

fn not_offered<T>(what: &str) -> Answer<T> {
    Err(Refused::unsupported(format!("{what}: not offered here")))
}

/// The verbs and functions of librdmacm, named as they are.
#[allow(missing_docs, unused_variables, reason = "named as the verbs are; nothing is offered by default")]
pub trait Extensions {
    /// Listens at the address of the card; `space` is TCP or UDP. Handle and port.
    fn listen(&mut self, space: &str) -> Answer<(Handle, u16)> {
        not_offered("connection manager")
    }
    /// Asks the near side for a connection to the service at this port.
    fn connect(&mut self, space: &str, port: u16, qp: Handle, terms: &Terms) -> Answer<Handle> {
        not_offered("connection manager")
    }
    /// `state` is how far the queue pair is brought.
    fn accept(&mut self, id: Handle, qp: Handle, state: &str, terms: &Terms) -> Answer<()> {
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
    /// COMM_EST was raised.
    fn notify(&mut self, id: Handle) -> Answer<()> {
        not_offered("connection manager")
    }
    fn destroy_id(&mut self, id: Handle) -> Answer<()> {
        not_offered("connection manager")
    }
    /// What has come since the last call.
    fn connection_events(&mut self) -> Answer<Vec<ConnectionEvent>> {
        not_offered("connection manager")
    }
    fn open_xrcd(&mut self) -> Answer<Handle> {
        not_offered("XRC")
    }
    /// Handle and number.
    fn create_xrc_srq(&mut self, pd: Option<Handle>, xrcd: Handle, cq: Handle) -> Answer<(Handle, u32)> {
        not_offered("XRC")
    }
    /// Handle and key.
    fn alloc_window(&mut self, kind: u32, pd: Option<Handle>) -> Answer<(Handle, u32)> {
        not_offered("memory windows")
    }
    /// Binds `length` bytes at `at` of a region; the new key.
    fn bind_window(&mut self, qp: Handle, window: Handle, mr: Handle, bound: Bound) -> Answer<u32> {
        not_offered("memory windows")
    }
    fn set_member(&mut self, qp: Handle, group: Gid, joins: bool) -> Answer<()> {
        not_offered("multicast groups")
    }
}

/// What a window shall show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// First byte of the region.
    pub at: u64,
    /// Bytes.
    pub length: u64,
    /// `enum ibv_access_flags`.
    pub access: u32,
    /// Comes back in the completion.
    pub wr_id: u64,
}

/// Registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Its handle.
    pub mr: Handle,
    /// First address.
    pub addr: u64,
    /// Key for its owner.
    pub lkey: u32,
    /// Key for peers.
    pub rkey: u32,
}

/// What a queue pair is made with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewQp {
    /// RC, UC, UD, XRC_SEND or XRC_RECV.
    pub service: String,
    /// Its protection domain; `None`: the one that is there from the start.
    pub pd: Option<Handle>,
    /// Its completion queue, for both sides.
    pub cq: Handle,
    /// Its shared receive queue.
    pub srq: Option<Handle>,
    /// The domain of a target of XRC.
    pub xrcd: Option<Handle>,
    /// Depths: sends, receives, elements of a list, inline bytes.
    pub caps: [u32; 4],
}

/// Attributes of a modify; those of `None` stay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// RESET, INIT, RTR, RTS, SQD or ERR.
    pub to: String,
    /// `enum ibv_access_flags`.
    pub access: Option<u32>,
    /// Q_Key.
    pub qkey: Option<u32>,
    /// Bytes of a full packet.
    pub path_mtu: Option<u32>,
    /// The near side's queue pair and address.
    pub dest: Option<(u32, Gid)>,
    /// First PSN expected.
    pub rq_psn: Option<u32>,
    /// First PSN sent.
    pub sq_psn: Option<u32>,
    /// Code of the ACK timeout.
    pub timeout: Option<u8>,
    /// Retries after loss.
    pub retry_cnt: Option<u8>,
    /// Retries after RNR NAK.
    pub rnr_retry: Option<u8>,
    /// Code of the wait in RNR NAKs.
    pub min_rnr_timer: Option<u8>,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: Option<u8>,
    /// READs and atomics outstanding as responder.
    pub max_dest_rd_atomic: Option<u8>,
    /// Raise SQ_DRAINED (with SQD).
    pub notify: bool,
    /// The address at the end of the alternate path, and the code of its ACK timeout.
    pub alternate: Option<(Gid, u8)>,
    /// MIGRATED, REARM or ARMED.
    pub migration: Option<String>,
}

/// A piece of memory, by numbers: what the card says to wrong ones is its business.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First address.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Key.
    pub lkey: u32,
}

/// A send work request.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// As in `enum ibv_wr_opcode`, without `IBV_WR_`.
    pub opcode: String,
    /// SIGNALED, FENCE, SOLICITED.
    pub flags: Vec<&'static str>,
    /// Its list.
    pub pieces: Vec<Piece>,
    /// Or its bytes.
    pub inline: Option<Vec<u8>>,
    /// Address in the memory of the near side.
    pub remote_addr: u64,
    /// Key there, or the key to invalidate.
    pub rkey: u32,
    /// Immediate data, as on the wire.
    pub imm: u32,
    /// Operands of atomics.
    pub compare_add: u64,
    /// The new value.
    pub swap: u64,
    /// Destination of a datagram: address, queue pair, Q_Key.
    pub datagram: Option<(Gid, u32, u32)>,
    /// The shared queue that a request of XRC names.
    pub srqn: u32,
}

/// A completion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completed {
    /// Of which work request.
    pub wr_id: u64,
    /// As in `enum ibv_wc_status`, without `IBV_WC_`.
    pub status: String,
    /// As in `enum ibv_wc_opcode`, without `IBV_WC_`.
    pub opcode: String,
    /// Bytes received.
    pub byte_len: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// Key that the sender has invalidated.
    pub invalidated: Option<u32>,
    /// The sender of a datagram.
    pub src_qp: u32,
    /// The queue pair.
    pub qpn: u32,
}

impl fmt::Display for Completed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { wr_id, status, opcode, byte_len, imm, invalidated, src_qp, qpn: _ } = self;
        write!(f, "id={wr_id} status={status}")?;
        if status != "SUCCESS" {
            return Ok(());
        }
        write!(f, " opcode={opcode} bytes={byte_len}")?;
        imm.map_or(Ok(()), |imm| write!(f, " imm={imm:#x}"))?;
        invalidated.map_or(Ok(()), |key| write!(f, " invalidated={key:#x}"))?;
        if *src_qp == 0 { Ok(()) } else { write!(f, " src_qp={src_qp:#x}") }
    }
}

/// What the far side shows at one time.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// Of each queue pair, its state and what has completed.
    pub queues: Vec<(String, Vec<Completed>)>,
    /// The first bytes of regions.
    pub memory: Vec<Vec<u8>>,
}

/// The card under test and its program. Methods are those of verbs, in the order of a program.
#[allow(missing_docs, reason = "named as the verbs are")]
pub trait FarSide {
    fn alloc_pd(&mut self) -> Answer<Handle>;
    fn register(&mut self, length: u64, access: u32, fill: u8, pd: Option<Handle>) -> Answer<Region>;
    fn deregister(&mut self, mr: Handle) -> Answer<()>;
    fn create_cq(&mut self, cqe: u32) -> Answer<Handle>;
    fn create_srq(&mut self, pd: Option<Handle>) -> Answer<Handle>;
    /// Handle and number.
    fn create_qp(&mut self, new: &NewQp) -> Answer<(Handle, u32)>;
    fn modify_qp(&mut self, qp: Handle, change: &Change) -> Answer<()>;
    /// Its state, as in [`Change::to`].
    fn query_qp(&mut self, qp: Handle) -> Answer<String>;
    fn destroy_qp(&mut self, qp: Handle) -> Answer<()>;
    fn post_send(&mut self, qp: Handle, work: &Work) -> Answer<()>;
    fn post_recv(&mut self, qp: Handle, wr_id: u64, pieces: &[Piece]) -> Answer<()>;
    fn post_srq_recv(&mut self, srq: Handle, wr_id: u64, pieces: &[Piece]) -> Answer<()>;
    /// What is in the queue now.
    fn poll(&mut self, cq: Handle) -> Answer<Vec<Completed>>;
    fn read(&mut self, mr: Handle, at: u64, len: u64) -> Answer<Vec<u8>>;
    fn write(&mut self, mr: Handle, at: u64, bytes: &[u8]) -> Answer<()>;
    /// Queue pairs, each with its completion queue, and so many of the first bytes of regions.
    fn look(&mut self, queues: &[(Handle, Handle)], regions: &[(Handle, u64)]) -> Answer<Look> {
        let queues = queues.iter().map(|(qp, cq)| Ok((self.query_qp(*qp)?, self.poll(*cq)?)));
        let queues = queues.collect::<Answer<_>>()?;
        let memory = regions.iter().map(|(mr, len)| self.read(*mr, 0, *len)).collect::<Answer<_>>()?;
        Ok(Look { queues, memory })
    }
    /// Asynchronous events since the last call, as in `enum ibv_event_type` without `IBV_EVENT_`.
    fn events(&mut self) -> Answer<Vec<String>>;
}

/// A packet on the near side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// From whom to whom, and what the IP header says.
    pub net: roxe_wire::NetHeader,
    /// From the BTH to the ICRC.
    pub bytes: Vec<u8>,
}

/// What is known of a target before anything is tried.
#[derive(Clone, Debug)]
pub struct Card {
    /// What reports call it.
    pub name: String,
    /// Its address.
    pub address: Gid,
    /// The address of the near side, and another one that no connection is with; zero if there is
    /// none.
    pub near: [Gid; 2],
    /// The first queue pair number of the near side.
    pub first_near: u32,
    /// The GUID of the near side, as its connection manager tells it.
    pub guid: u64,
    /// The UDP port that the near side sends from.
    pub near_port: u16,
    /// How much too late the near side may see a packet; time between two is known no better.
    pub jitter: Duration,
    /// The largest path MTU of its port, bytes.
    pub max_mtu: u32,
    /// The longest datagram that the near side can send, bytes of UDP payload.
    pub max_datagram: usize,
}

/// A target of scripts.
pub trait Target: FarSide + Extensions {
    /// What is known of it, when addresses are IPv6, or IPv4. `None`: it has no such address.
    fn card(&self, ipv6: bool) -> Option<Card>;
    /// Returns what names the card in a report, such as its driver: names and values.
    fn identity(&self) -> Vec<(String, String)> {
        Vec::new()
    }
    /// Begins a case over these addresses: everything of the case before is freed.
    ///
    /// # Errors
    /// The target cannot be used.
    fn begin(&mut self, ipv6: bool) -> Answer<()>;
    /// The time since some start.
    fn now(&self) -> Duration;
    /// Sends a packet from the near side.
    ///
    /// # Errors
    /// The near side itself cannot.
    fn send(&mut self, datagram: &Datagram) -> Answer<()>;
    /// The next packet for the near side, if one comes until then, and when it came.
    ///
    /// # Errors
    /// The near side itself cannot.
    fn receive(&mut self, until: Duration) -> Answer<Option<(Duration, Datagram)>>;
    /// Whether it has gone for good, so that no further case can be run.
    fn is_lost(&self) -> bool {
        false
    }
    /// Waits before the far side is asked again, at most until then.
    fn pause(&mut self, until: Duration);
    /// From now on cases shall follow each other fast: objects are used again, and a refusal may be
    /// told late; one of a work request is not told. Frees everything.
    ///
    /// # Errors
    /// The target cannot be used.
    fn hurry(&mut self) -> Answer<()> {
        Ok(())
    }
    /// In a hurry: the next case has new objects. Those of earlier ones stay, as some cards take a
    /// minute to destroy what they have lost count of.
    ///
    /// # Errors
    /// The target cannot be used.
    fn renew(&mut self) -> Answer<()> {
        Ok(())
    }
}
