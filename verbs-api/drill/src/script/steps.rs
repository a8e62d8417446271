//! What steps say. Pure data; the numbers in them are not worked out yet.

use crate::layout::{self, Field};
use crate::mad::Message;
use crate::number::{Names, Number};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A step and where it stands.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) number: usize,
    pub(crate) text: String,
    pub(crate) step: Step,
}

/// One step of a script.
#[derive(Debug)]
pub(crate) enum Step {
    /// The near side sends a packet.
    Send(Spec),
    /// The next packet of the card is this one.
    Expect(Expectation),
    /// The card sends nothing for this time; if true, no CNP either.
    Silence(Number, bool),
    /// Time passes.
    Wait(Number),
    /// A name for a number.
    Let(String, Number),
    /// So many times; the name `i` counts from 0.
    Repeat(Number, Vec<Line>),
    /// The far side does something, or is asked.
    Peer(Peer),
}

/// A packet: what the script says of it.
#[derive(Debug)]
pub(crate) struct Spec {
    pub(crate) opcode: u8,
    /// What the script calls it, for messages.
    pub(crate) name: String,
    /// The message of the connection manager that it carries.
    pub(crate) message: Option<&'static Message>,
    /// Named fields; all others have their usual values, or are not looked at.
    pub(crate) fields: Vec<(String, Number)>,
    pub(crate) payload: Option<Data>,
    /// The queue pair of the card that it goes to or comes from; the first one if none is named.
    pub(crate) qp: Option<String>,
    pub(crate) damage: Damage,
}

impl Spec {
    /// The fields that it has, and where its payload begins.
    pub(crate) fn layout(&self) -> (&'static [Field], usize) {
        self.message.map_or_else(|| layout::fields(self.opcode), |message| (&message.fields, message.len))
    }
}

/// What is wrong with a packet on purpose, or about it in the IP header.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    /// Cut to so many bytes, ICRC included; the ICRC is right again behind the cut.
    pub(crate) cut: Option<Number>,
    /// So many bytes too many in front of the ICRC.
    pub(crate) extra: Option<Number>,
    /// This is added to the ICRC.
    pub(crate) icrc: Option<Number>,
    /// IPv4 TOS or IPv6 traffic class.
    pub(crate) tos: Option<Number>,
    /// Sent from another address of the near side, or received there.
    pub(crate) stranger: bool,
    /// Sent to this group, instead of to the card.
    pub(crate) group: Option<IpAddr>,
}

/// What must come.
#[derive(Debug)]
pub(crate) struct Expectation {
    pub(crate) spec: Spec,
    /// Not before so long since the packet before it, either way.
    pub(crate) after: Option<Number>,
    /// At the latest so long after the step begins.
    pub(crate) within: Option<Number>,
    /// Which earlier packets are passed over.
    pub(crate) skips: Skips,
    /// Its fields get names that begin with this.
    pub(crate) named: Option<String>,
}

/// Packets that may come before an expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skips {
    /// None.
    Nothing,
    /// Acknowledgements of earlier packets: a card may send one for each packet, or one for all.
    EarlierAcks,
    /// Messages of the connection manager that ask for patience.
    Patience,
    /// Any.
    Everything,
}

/// Which bytes.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    /// Those of the pattern, from its byte number `from` on: no two places of a message have the
    /// same surroundings.
    Pattern { len: Number, from: Option<Number> },
    /// All the same.
    Fill { len: Number, byte: Number },
    /// These.
    Bytes(Vec<u8>),
}

/// The most bytes that a script speaks of at once.
const MAX_DATA: u64 = 1 << 24;

impl Data {
    /// The bytes.
    ///
    /// # Errors
    /// As [`Number::value`], or that they are too many.
    pub(crate) fn bytes(&self, names: &Names) -> Result<Vec<u8>, String> {
        let many = |len: &Number| match len.value(names)? {
            len if len > MAX_DATA => Err(format!("{len} bytes are too many")),
            len => Ok(len),
        };
        Ok(match self {
            Self::Bytes(bytes) => bytes.clone(),
            Self::Fill { len, byte } => vec![byte.value(names)? as u8; many(len)? as usize],
            Self::Pattern { len, from } => {
                let from = from.as_ref().map_or(Ok(0), |from| from.value(names))?;
                (0..many(len)?).map(|at| pattern(from.wrapping_add(at))).collect()
            }
        })
    }
}

/// Byte number `at` of the pattern.
pub(crate) const fn pattern(at: u64) -> u8 {
    (at.wrapping_mul(7) ^ (at >> 8).wrapping_mul(29)) as u8
}

/// What the far side is told or asked.
#[derive(Debug)]
pub(crate) enum Peer {
    /// `pd NAME`
    Pd(String),
    /// `reg NAME`: registers memory.
    Register { name: String, length: Number, access: u32, fill: Option<Number>, pd: Option<String> },
    /// `dereg NAME`
    Deregister(String),
    /// `srq NAME`
    Srq { name: String, pd: Option<String>, xrcd: Option<String> },
    /// `xrcd NAME`
    Xrcd(String),
    /// `qp NAME`: makes a queue pair and connects it to the near side.
    Qp(Box<QpSpec>),
    /// `modify NAME to=STATE`
    Modify(Box<Modify>),
    /// `destroy NAME`
    Destroy(String),
    /// `post NAME OPERATION`
    Post(Box<Post>),
    /// `recv NAME`
    Recv { queue: String, id: Number, sges: Vec<Sge> },
    /// `complete NAME`
    Complete { qp: String, wanted: Completion, within: Option<Number> },
    /// `idle NAME`: no completion for so long.
    Idle { qp: String, time: Option<Number> },
    /// `state NAME STATE`
    State { qp: String, state: String, within: Option<Number> },
    /// `memory NAME`
    Memory { mr: String, at: Option<Number>, data: Data },
    /// `write NAME`: the program of the far side writes to its memory.
    Write { mr: String, at: Option<Number>, data: Data },
    /// `event NAME`
    Event { name: String, within: Option<Number> },
    /// `mw NAME`
    Window { name: String, kind: Number, pd: Option<String> },
    /// `bind QP WINDOW`
    Bind(Box<Bind>),
    /// `join QP GROUP` and `leave QP GROUP`
    Member { qp: String, group: IpAddr, joins: bool },
    /// What librdmacm does about the identifier of this name.
    Connection(String, Box<Act>),
}

/// A change of a queue pair.
#[derive(Debug)]
pub(crate) struct Modify {
    pub(crate) qp: String,
    pub(crate) to: String,
    pub(crate) numbers: Numbers,
    /// The path to the second address of the near side is the alternate one.
    pub(crate) alternate: bool,
    /// State of path migration.
    pub(crate) migration: Option<String>,
}

/// The binding of a window.
#[derive(Debug)]
pub(crate) struct Bind {
    pub(crate) qp: String,
    pub(crate) window: String,
    pub(crate) mr: String,
    pub(crate) at: Option<Number>,
    pub(crate) length: Number,
    pub(crate) access: u32,
    pub(crate) id: Number,
}

/// What the far side does by librdmacm.
#[derive(Debug)]
pub(crate) enum Act {
    /// `listen NAME`
    Listen { space: String },
    /// `request NAME of=LISTENER`: a request has come, which gets this name.
    Request { of: String, private: Option<Data>, within: Option<Number> },
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
    /// `notify NAME`: COMM_EST was raised.
    Notify,
    /// `forget NAME`
    Forget,
    /// `cm NAME EVENT`: the next event is this one.
    Event { event: String, status: Option<Number>, private: Option<Data>, within: Option<Number> },
    /// `quiet NAME`: no event for so long.
    Quiet { time: Option<Number> },
}

/// Attributes by name.
pub(crate) type Numbers = BTreeMap<&'static str, Number>;

/// A queue pair to make.
#[derive(Debug)]
pub(crate) struct QpSpec {
    pub(crate) name: String,
    pub(crate) service: String,
    /// How far it is brought: INIT, RTR or RTS.
    pub(crate) state: String,
    pub(crate) access: u32,
    pub(crate) pd: Option<String>,
    pub(crate) srq: Option<String>,
    pub(crate) xrcd: Option<String>,
    pub(crate) numbers: Numbers,
}

/// A piece of registered memory.
#[derive(Debug)]
pub(crate) struct Sge {
    pub(crate) mr: String,
    pub(crate) at: Number,
    pub(crate) len: Number,
}

/// A send work request.
#[derive(Debug)]
pub(crate) struct Post {
    pub(crate) qp: String,
    pub(crate) operation: String,
    pub(crate) id: Number,
    pub(crate) flags: Vec<&'static str>,
    pub(crate) sges: Vec<Sge>,
    pub(crate) inline: Option<Data>,
    pub(crate) numbers: Numbers,
    /// What the verb must answer; success if nothing is said.
    pub(crate) refused: bool,
}

/// What a completion must say.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) id: Number,
    pub(crate) status: String,
    pub(crate) opcode: Option<String>,
    pub(crate) numbers: Numbers,
}
