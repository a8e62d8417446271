//! The steps of a script. Numbers are evaluated when a step runs.

use crate::figures::Unit;
use crate::layout::{self, Field};
use crate::mad::Message;
use crate::number::{Names, Number};
use std::collections::BTreeMap;
use std::net::IpAddr;

#[derive(Debug)]
pub(crate) struct Line {
    /// Number of the line in the script, from 1.
    pub(crate) number: usize,
    pub(crate) text: String,
    pub(crate) step: Step,
}

#[derive(Debug)]
pub(crate) enum Step {
    /// The near side sends a packet.
    Send(Spec),
    /// The near side expects a packet of the card.
    Expect(Expectation),
    /// The card sends no packet for this time, except CNPs unless they are forbidden.
    Silence {
        time: Number,
        forbids_cnps: bool,
    },
    Wait(Number),
    Let(String, Number),
    Count(Count),
    Figure(Figure),
    /// Repeats lines; the name `i` counts from 0.
    Repeat(Number, Vec<Line>),
    /// The far side calls a verb, or its state is checked.
    Peer(Peer),
}

impl Step {
    /// Returns true if the step, or one inside it, posts inline data.
    pub(crate) fn posts_inline(&self) -> bool {
        match self {
            Self::Peer(Peer::Post(post)) => post.inline.is_some(),
            Self::Repeat(_, inside) => inside.iter().any(|line| line.step.posts_inline()),
            _ => false,
        }
    }
}

/// Specification of a packet.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) opcode: u8,
    /// Name of the packet in error messages.
    pub(crate) name: String,
    /// Message of the connection manager in the packet.
    pub(crate) message: Option<&'static Message>,
    /// Named fields. Other fields have default values when sent, and any value when expected.
    pub(crate) fields: Vec<(String, Number)>,
    pub(crate) payload: Option<Data>,
    /// Queue pair of the card; the first one by default.
    pub(crate) qp: Option<String>,
    /// Prefix for the names of the packet's fields and time.
    pub(crate) prefix: Option<String>,
    pub(crate) overrides: Overrides,
}

impl Spec {
    /// Returns the fields of the packet, and the offset of its payload.
    pub(crate) fn layout(&self) -> (&'static [Field], usize) {
        self.message.map_or_else(|| layout::fields(self.opcode), |message| (&message.fields, message.len))
    }
}

/// Deliberate damage to a packet, and unusual addresses and fields in its IP header.
#[derive(Debug)]
pub(crate) struct Overrides {
    /// Length to which the packet is cut, in bytes; its ICRC is correct.
    pub(crate) cut: Option<Number>,
    /// Number of additional bytes before the ICRC.
    pub(crate) extra: Option<Number>,
    /// Number to add to the ICRC.
    pub(crate) icrc: Option<Number>,
    /// IPv4 TOS or IPv6 traffic class.
    pub(crate) tos: Number,
    /// IPv4 TTL or IPv6 hop limit.
    pub(crate) ttl: Number,
    /// True if the packet is sent from, or expected at, the second address of the near side.
    pub(crate) stranger: bool,
    /// Multicast group to send to instead of the card.
    pub(crate) group: Option<IpAddr>,
}

#[derive(Debug)]
pub(crate) struct Expectation {
    pub(crate) spec: Spec,
    /// Minimum time since the packet `since`.
    pub(crate) after: Option<Number>,
    /// Name of a packet; the previous packet in either direction by default.
    pub(crate) since: Option<String>,
    /// Time limit from the start of the step.
    pub(crate) within: Number,
    /// Upper 6 bits of TOS or traffic class.
    pub(crate) dscp: Option<Number>,
    /// TTL or hop limit.
    pub(crate) ttl: Option<Number>,
    pub(crate) skips: Skips,
}

/// `count`: counts the card's packets that match.
#[derive(Debug)]
pub(crate) struct Count {
    pub(crate) spec: Spec,
    /// Minimum and maximum number of these packets.
    pub(crate) range: Option<[Number; 2]>,
    /// Duration of the count.
    pub(crate) time: Number,
}

/// `figure`: a number for the report, without a verdict.
#[derive(Debug)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) number: Number,
}

/// Packets to ignore before an expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skips {
    Nothing,
    /// ACKs of earlier packets: a card may acknowledge each packet, or several at once.
    EarlierAcks,
    /// MRA messages of the connection manager.
    Mra,
    Everything,
}

#[derive(Clone, Debug)]
pub(crate) enum Data {
    /// The bytes of [`pattern`] from byte `from` on. They vary, so that misplaced bytes are
    /// noticed.
    Pattern {
        len: Number,
        from: Option<Number>,
    },
    /// Equal bytes.
    Fill {
        len: Number,
        byte: Number,
    },
    Bytes(Vec<u8>),
    /// A number of 4 or 8 bytes, most significant byte first.
    Word {
        value: Number,
        bytes: usize,
    },
    /// Several parts, one after the other.
    Parts(Vec<Self>),
}

/// Maximum length of the data of a step, in bytes.
const MAX_DATA: u64 = 1 << 24;

impl Data {
    /// Returns the bytes. Fails if a number has no value, or if the data exceed [`MAX_DATA`].
    pub(crate) fn bytes(&self, names: &Names) -> Result<Vec<u8>, String> {
        let checked_len = |len: &Number| match len.value(names)? {
            len if len > MAX_DATA => Err(format!("{len} bytes exceed the limit of {MAX_DATA} bytes per step")),
            len => Ok(len),
        };
        Ok(match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Parts(parts) => {
                let parts = parts.iter().map(|part| part.bytes(names)).collect::<Result<Vec<_>, _>>()?;
                parts.concat()
            }
            Self::Word { value, bytes } => value.value(names)?.to_be_bytes()[8 - bytes..].to_vec(),
            Self::Fill { len, byte } => vec![byte.value(names)? as u8; checked_len(len)? as usize],
            Self::Pattern { len, from } => {
                let from = from.as_ref().map_or(Ok(0), |from| from.value(names))?;
                (0..checked_len(len)?).map(|at| pattern(from.wrapping_add(at))).collect()
            }
        })
    }
}

/// Returns byte `at` of the pattern.
pub(crate) const fn pattern(at: u64) -> u8 {
    (at.wrapping_mul(7) ^ (at >> 8).wrapping_mul(29)) as u8
}

/// A step of the far side.
#[derive(Debug)]
pub(crate) enum Peer {
    /// A verb with the word `refused`: it must fail.
    Refused(Box<Self>),
    /// `pd NAME`
    Pd(String),
    /// `reg NAME`
    Register {
        name: String,
        length: Number,
        access: u32,
        fill: Number,
        pd: Option<String>,
        /// Offset of the byte whose address is a multiple of 4 GiB.
        edge: Option<Number>,
    },
    /// `dereg NAME`
    Deregister(String),
    /// `rereg NAME`: changes the rights of a region.
    Reregister { mr: String, access: u32 },
    /// `srq NAME`
    Srq { name: String, pd: Option<String>, xrcd: Option<String>, tags: Option<Number> },
    /// `tag SRQ NAME`, `untag SRQ NAME` and `sync SRQ`
    Tag(Box<Tag>),
    /// `xrcd NAME`
    Xrcd(String),
    /// `qp NAME`: creates a queue pair and connects it to the near side.
    Qp(Box<QpSpec>),
    /// `restart NAME`: resets a queue pair and connects it again.
    Restart(Box<QpSpec>),
    /// `modify NAME to=STATE`
    Modify(Box<Modify>),
    /// `destroy NAME`
    Destroy(String),
    /// `post NAME OPERATION`
    Post(Box<Post>),
    /// `recv NAME`
    Recv { queue: String, id: Number, sges: Vec<Sge> },
    /// `complete NAME`
    Complete { qp: String, wanted: ExpectedCompletion, within: Number },
    /// `idle NAME`: expects no completion for this time.
    Idle { qp: String, time: Number },
    /// `state NAME STATE`
    State { qp: String, state: String, within: Number },
    /// `attributes NAME`: expects that a query reports these attributes.
    Attributes(Box<ExpectedAttributes>),
    /// `memory NAME`
    Memory { mr: String, at: Number, data: Data, within: Number },
    /// `checksum NAME`: expects that these bytes have a valid IP checksum.
    Checksum { mr: String, at: Number, len: Number },
    /// `write NAME`: the program of the far side writes to its memory.
    Write { mr: String, at: Number, data: Data },
    /// `event NAME`: expects an asynchronous event. `of` is its queue pair or shared receive queue;
    /// `None` if any object may raise it.
    Event { name: String, of: Option<String>, within: Number },
    /// `event none`: expects no asynchronous event for this time.
    NoEvent { time: Number },
    /// `arm NAME`: requests an event for the next completion, or for the next solicited one.
    Arm { qp: String, solicited: bool },
    /// `wakes NAME`: expects the requested event.
    Wakes { qp: String, within: Number },
    /// `sleeps NAME`: expects that the requested event is not raised for this time.
    Sleeps { qp: String, time: Number },
    /// `resize NAME N`: changes the number of entries of the queue pair's completion queue.
    Resize { qp: String, entries: Number },
    /// `limit SRQ N`
    Limit { srq: String, limit: Number },
    /// `mw NAME`
    Window { name: String, kind: Number, pd: Option<String> },
    /// `bind QP WINDOW`
    Bind(Box<Bind>),
    /// `join QP GROUP` and `leave QP GROUP`
    Member { qp: String, group: IpAddr, joins: bool },
    /// A function of librdmacm for the identifier of this name.
    Connection(String, Box<CmStep>),
}

#[derive(Debug)]
pub(crate) struct Modify {
    pub(crate) qp: String,
    pub(crate) to: String,
    pub(crate) numbers: Numbers,
    pub(crate) access: Option<u32>,
    /// True if the path to the second address of the near side becomes the alternate path.
    pub(crate) alternate: bool,
    /// State of path migration.
    pub(crate) migration: Option<String>,
    /// True if the verb must fail.
    pub(crate) refused: bool,
}

/// An operation on the tags of a shared receive queue.
#[derive(Debug)]
pub(crate) struct Tag {
    pub(crate) srq: String,
    /// ADD, DEL or SYNC.
    pub(crate) operation: &'static str,
    /// The tag to add or to remove.
    pub(crate) name: Option<String>,
    pub(crate) id: Number,
    pub(crate) sges: Vec<Sge>,
    pub(crate) numbers: Numbers,
}

#[derive(Debug)]
pub(crate) struct Bind {
    pub(crate) qp: String,
    pub(crate) window: String,
    pub(crate) mr: String,
    pub(crate) at: Number,
    pub(crate) length: Number,
    pub(crate) access: u32,
    pub(crate) id: Number,
}

/// A function of librdmacm.
#[derive(Debug)]
pub(crate) enum CmStep {
    /// `listen NAME`
    Listen { space: String, backlog: Option<Number> },
    /// `request NAME of=LISTENER`: gives the next request a name.
    Request { of: String, private: Option<Data>, numbers: Numbers, within: Number },
    /// `connect NAME qp=QP`
    Connect { qp: String, space: String, private: Option<Data>, numbers: Numbers },
    /// `accept NAME qp=QP`
    Accept { qp: String, state: String, private: Option<Data>, numbers: Numbers },
    /// `establish NAME qp=QP`
    Establish { qp: String },
    /// `reject NAME`
    Reject { private: Option<Data> },
    /// `disconnect NAME`
    Disconnect,
    /// `notify NAME`
    Notify,
    /// `forget NAME`
    Forget,
    /// `cm NAME EVENT`: expects the next event.
    Event(Box<ExpectedCmEvent>),
    /// `quiet NAME`: expects no event for this time.
    Quiet { time: Number },
}

/// An expected event of librdmacm.
#[derive(Debug)]
pub(crate) struct ExpectedCmEvent {
    pub(crate) event: String,
    pub(crate) status: Option<Number>,
    pub(crate) private: Option<Data>,
    pub(crate) numbers: Numbers,
    pub(crate) within: Number,
}

/// Attributes that a query must report.
#[derive(Debug)]
pub(crate) struct ExpectedAttributes {
    pub(crate) qp: String,
    pub(crate) numbers: Numbers,
    pub(crate) access: Option<u32>,
    pub(crate) migration: Option<String>,
}

/// Numeric attributes by name.
pub(crate) type Numbers = BTreeMap<&'static str, Number>;

#[derive(Debug)]
pub(crate) struct QpSpec {
    pub(crate) name: String,
    pub(crate) service: String,
    /// State in which the step leaves the queue pair.
    pub(crate) state: String,
    pub(crate) access: u32,
    pub(crate) pd: Option<String>,
    pub(crate) srq: Option<String>,
    pub(crate) xrcd: Option<String>,
    pub(crate) numbers: Numbers,
}

#[derive(Debug)]
pub(crate) struct Sge {
    pub(crate) mr: String,
    pub(crate) at: Number,
    pub(crate) len: Number,
}

#[derive(Debug)]
pub(crate) struct Post {
    pub(crate) qp: String,
    pub(crate) operation: String,
    pub(crate) id: Number,
    pub(crate) flags: Vec<&'static str>,
    pub(crate) sges: Vec<Sge>,
    pub(crate) inline: Option<Data>,
    pub(crate) numbers: Numbers,
    /// True if the verb must fail.
    pub(crate) refused: bool,
}

/// Expected fields of a completion.
#[derive(Debug)]
pub(crate) struct ExpectedCompletion {
    pub(crate) id: Number,
    pub(crate) status: String,
    pub(crate) opcode: Option<String>,
    pub(crate) numbers: Numbers,
}
