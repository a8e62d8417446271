//! Parses a line into a step.

use super::steps::{
    Bind, CmStep, Count, Data, Expectation, ExpectedAttributes, ExpectedCmEvent, ExpectedCompletion, Figure, Modify,
    Numbers, Overrides, Peer, Post, QpSpec, Sge, Skips, Spec, Step, Tag,
};
use crate::figures::Unit;
use crate::number::Number;
use crate::target::{QUERIED, REPORTED};
use crate::{layout, mad};
use roxe_peer::protocol::from_hex;
use std::net::IpAddr;

/// Attributes of queue pairs, at creation and in a modify.
const ATTRIBUTES: [&str; 19] = [
    "mtu",
    "rq_psn",
    "sq_psn",
    "rd_atomic",
    "dest_rd_atomic",
    "timeout",
    "retry_cnt",
    "rnr_retry",
    "rnr_timer",
    "qkey",
    "sends",
    "receives",
    "sges",
    "inline",
    "cqe",
    "notify",
    "alt_timeout",
    "dscp",
    "hop_limit",
];
/// States of path migration.
const MIGRATION: [&str; 3] = ["MIGRATED", "REARM", "ARMED"];
/// Numbers of a send work request.
const POST_NUMBERS: [&str; 13] = [
    "remote",
    "rkey",
    "imm",
    "compare",
    "swap",
    "add",
    "invalidate",
    "remote_qpn",
    "remote_qkey",
    "length",
    "srqn",
    "dscp",
    "hop_limit",
];
/// Numbers of a completion.
const COMPLETION_NUMBERS: [&str; 10] =
    ["bytes", "imm", "src_qp", "invalidated", "grh", "tag", "context", "matched", "valid", "asks_sync"];
/// Flags of a send work request.
const FLAGS: [&str; 3] = ["FENCE", "SOLICITED", "UNSIGNALED"];
/// States of queue pairs.
const STATES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
const OPERATIONS: [&str; 9] = [
    "SEND",
    "SEND_WITH_IMM",
    "SEND_WITH_INV",
    "RDMA_WRITE",
    "RDMA_WRITE_WITH_IMM",
    "RDMA_READ",
    "ATOMIC_CMP_AND_SWP",
    "ATOMIC_FETCH_AND_ADD",
    "LOCAL_INV",
];
/// Default time limit for a packet, a completion or an event.
const DEFAULT_TIMEOUT: &str = "500ms";
/// Default time without packets, completions or events.
const DEFAULT_IDLE: &str = "20ms";
/// Verbs that a script may expect to fail, besides `post` and `modify`.
const CAN_FAIL: [&str; 12] =
    ["reg", "rereg", "dereg", "srq", "qp", "recv", "mw", "bind", "join", "leave", "resize", "limit"];
/// Words without a value in `send` and `expect`.
const WITHOUT_VALUE: [&str; 11] =
    ["within", "after", "each", "eventually", "stranger", "ackreq", "solicited", "migreq", "becn", "fecn", "noackreq"];

/// Parses a step from its first word and the rest of its line.
pub(super) fn step(service: &str, word: &str, rest: &str) -> Result<Step, String> {
    let mut words = Words::parse(rest);
    let step = match word {
        "send" => Step::Send(spec(service, &mut words)?),
        "expect" => Step::Expect(expectation(service, &mut words)?),
        "silence" => {
            let forbids_cnps = words.flag("each");
            Step::Silence { time: Number::parse_time(words.next("the time")?)?, forbids_cnps }
        }
        "wait" => Step::Wait(Number::parse_time(words.next("the time")?)?),
        "repeat" => Step::Repeat(Number::parse(words.next("the number of turns")?)?, Vec::new()),
        "let" => {
            let name = words.next("the name")?;
            if words.next("`=`")? != "=" {
                return Err("a name is set with `let NAME = NUMBER`".into());
            }
            Step::Let(name.into(), Number::parse(words.next("the number")?)?)
        }
        "count" => Step::Count(count(service, &mut words)?),
        "figure" => {
            let name = words.next("the name")?.to_owned();
            let unit = words.next("the unit")?;
            let unit =
                Unit::of(unit).ok_or_else(|| format!("`{unit}` is not a unit of a figure; write time or number"))?;
            Step::Figure(Figure { name, unit, number: Number::parse(words.next("the number")?)? })
        }
        "peer" => Step::Peer(peer(service, &mut words)?),
        _ => return Err(format!("there is no step `{word}`")),
    };
    words.finish()?;
    Ok(step)
}

/// Parses a packet to send or to expect.
fn spec(service: &str, words: &mut Words<'_>) -> Result<Spec, String> {
    let operation = words.next("the opcode")?;
    let bits = layout::service_bits(service).ok_or_else(|| format!("there is no service `{service}`"))?;
    let mut fields = Vec::new();
    let mut set = |name: &str, value: Number| fields.push((name.to_owned(), value));
    let mut name = operation.to_owned();
    let message = mad::message_named(operation);
    let opcode = match operation {
        "NAK" => {
            let code = words.next_name(&WITHOUT_VALUE).ok_or("the code of the NAK is missing")?;
            let nak = layout::NAKS.iter().position(|known| *known == code);
            let nak = nak.ok_or_else(|| format!("there is no NAK `{code}`"))?;
            set("syndrome", Number::parse(&(0x60 | nak).to_string())?);
            name = format!("NAK {code}");
            Some(bits << 5 | 0x11)
        }
        "RNR" => {
            let timer = words.text("timer").unwrap_or("0");
            set("syndrome", Number::parse(&format!("32+{timer}"))?);
            name = format!("RNR timer={timer}");
            Some(bits << 5 | 0x11)
        }
        operation => match operation.strip_prefix("0x") {
            Some(byte) => u8::from_str_radix(byte, 16).ok(),
            None if message.is_some() => Some(mad::OPCODE),
            None => layout::opcode(bits, operation),
        },
    };
    let opcode = opcode.ok_or_else(|| format!("{service} has no opcode `{operation}`"))?;
    let overrides = Overrides {
        cut: words.number("cut")?,
        extra: words.number("extra")?,
        icrc: words.number("icrc")?,
        tos: words.number_or("tos", "0")?,
        ttl: words.number_or("ttl", "64")?,
        stranger: words.flag("stranger"),
        group: words.text("group").map(address).transpose()?,
    };
    let [qp, prefix] = ["of", "as"].map(|name| words.owned(name));
    let payload = words.data()?;
    for (field, value) in words.rest() {
        let (field, value) = match (field, value) {
            ("noackreq", None) => ("ackreq", Number::parse("0")?),
            ("ackreq" | "solicited" | "migreq" | "becn" | "fecn", None) => (field, Number::parse("1")?),
            // A FETCH ADD carries its addend in the field of the swap value.
            ("add", Some(value)) => ("swap", Number::parse(value)?),
            (field, Some(value)) if is_field(message, field) => (field, Number::parse(value)?),
            _ => return Err(format!("`{field}` is not a field of {operation}")),
        };
        set(field, value);
    }
    Ok(Spec { opcode, name, message, fields, payload, qp, prefix, overrides })
}

/// Returns true if a script may set this field.
fn is_field(message: Option<&mad::Message>, name: &str) -> bool {
    let of_message = |message: &mad::Message| message.fields.iter().any(|field| field.name == name);
    !name.starts_with('_') && message.map_or_else(|| layout::is_field(name), of_message)
}

fn address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("`{text}` is not an address"))
}

fn expectation(service: &str, words: &mut Words<'_>) -> Result<Expectation, String> {
    let (after, within) = (words.time_after("after")?, words.time_or("within", DEFAULT_TIMEOUT)?);
    let (each, eventually) = (words.flag("each"), words.flag("eventually"));
    let since = words.owned("since");
    if since.is_some() && after.is_none() {
        return Err("since= needs `after TIME`".into());
    }
    let (dscp, ttl) = (words.number("dscp")?, words.number("ttl")?);
    let spec = spec(service, words)?;
    let is_ack = spec.opcode & 0x1f == 0x11 && spec.name == "ACK";
    let skips = match (each, eventually) {
        (true, _) => Skips::Nothing,
        (_, true) => Skips::Everything,
        _ if is_ack => Skips::EarlierAcks,
        _ if spec.message.is_some() => Skips::Mra,
        _ => Skips::Nothing,
    };
    Ok(Expectation { spec, after, since, within, dscp, ttl, skips })
}

fn count(service: &str, words: &mut Words<'_>) -> Result<Count, String> {
    let time = words.time_after("for")?.ok_or("`for TIME` is missing")?;
    let range = words.text("range").map(|range| {
        let (min, max) = range.split_once("..").ok_or("a range is `range=MIN..MAX`")?;
        Ok::<_, String>([Number::parse(min)?, Number::parse(max)?])
    });
    Ok(Count { range: range.transpose()?, time, spec: spec(service, words)? })
}

fn peer(service: &str, words: &mut Words<'_>) -> Result<Peer, String> {
    let verb = words.next("the verb")?;
    if CAN_FAIL.contains(&verb) && words.flag("refused") {
        return Ok(Peer::Refused(Box::new(peer_verb(verb, service, words)?)));
    }
    peer_verb(verb, service, words)
}

/// Parses the words after the verb of a step of the far side.
fn peer_verb(verb: &str, service: &str, words: &mut Words<'_>) -> Result<Peer, String> {
    let name = words.next("the name of an object")?.to_owned();
    Ok(match verb {
        "pd" => Peer::Pd(name),
        "reg" => Peer::Register {
            name,
            length: words.number_or("length", "4096")?,
            access: access(words.text("access").unwrap_or("all"))?,
            fill: words.number_or("fill", "0")?,
            pd: words.owned("pd"),
            edge: words.number("edge")?,
        },
        "dereg" => Peer::Deregister(name),
        "rereg" => Peer::Reregister { mr: name, access: access(words.required("access")?)? },
        "srq" => {
            let tags = words.number("tags")?;
            Peer::Srq { name, pd: words.owned("pd"), xrcd: words.owned("xrcd"), tags }
        }
        "tag" => Peer::Tag(Box::new(tag(name, "ADD", words)?)),
        "untag" => Peer::Tag(Box::new(tag(name, "DEL", words)?)),
        "sync" => Peer::Tag(Box::new(tag(name, "SYNC", words)?)),
        "xrcd" => Peer::Xrcd(name),
        "qp" => Peer::Qp(Box::new(new_qp(service, name, words)?)),
        "restart" => {
            let spec = new_qp(service, name, words)?;
            if (&spec.pd, &spec.srq, &spec.xrcd) != (&None, &None, &None) {
                return Err("pd=, srq= and xrcd= are invalid in `restart`: a queue pair keeps its objects".into());
            }
            Peer::Restart(Box::new(spec))
        }
        "modify" => Peer::Modify(Box::new(modify(name, words)?)),
        "destroy" => Peer::Destroy(name),
        "post" => Peer::Post(Box::new(post(name, words)?)),
        "recv" => Peer::Recv { queue: name, id: words.required_number("id")?, sges: sges(words)? },
        "complete" => {
            let within = words.time_or("within", DEFAULT_TIMEOUT)?;
            Peer::Complete { qp: name, wanted: completion(words)?, within }
        }
        "idle" => Peer::Idle { qp: name, time: words.time_or("for", DEFAULT_IDLE)? },
        "state" => {
            let within = words.time_or("within", DEFAULT_TIMEOUT)?;
            Peer::State { qp: name, state: one_of(&STATES, words.next("the state")?)?, within }
        }
        "attributes" => Peer::Attributes(Box::new(ExpectedAttributes {
            qp: name,
            access: words.text("access").map(access).transpose()?,
            migration: words.text("migration").map(|word| one_of(&MIGRATION, word)).transpose()?,
            numbers: numbers(words, &QUERIED)?,
        })),
        "memory" => {
            let within = words.time_or("within", "0ns")?;
            Peer::Memory { mr: name, at: words.number_or("at", "0")?, data: words.required_data()?, within }
        }
        "checksum" => Peer::Checksum { mr: name, at: words.number_or("at", "0")?, len: words.required_number("len")? },
        "write" => Peer::Write { mr: name, at: words.number_or("at", "0")?, data: words.required_data()? },
        "event" if name == "none" => Peer::NoEvent { time: words.time_or("for", DEFAULT_IDLE)? },
        "event" => Peer::Event { name, of: words.owned("of"), within: words.time_or("within", DEFAULT_TIMEOUT)? },
        "arm" => Peer::Arm { qp: name, solicited: words.flag("solicited") },
        "wakes" => Peer::Wakes { qp: name, within: words.time_or("within", DEFAULT_TIMEOUT)? },
        "sleeps" => Peer::Sleeps { qp: name, time: words.time_or("for", DEFAULT_IDLE)? },
        "resize" => Peer::Resize { qp: name, entries: Number::parse(words.next("the number of entries")?)? },
        "limit" => Peer::Limit { srq: name, limit: Number::parse(words.next("the limit")?)? },
        "mw" => Peer::Window { name, kind: words.number_or("type", "2")?, pd: words.owned("pd") },
        "bind" => Peer::Bind(Box::new(bind(name, words)?)),
        "join" | "leave" => {
            let group = address(words.next("the group")?)?;
            Peer::Member { qp: name, group, joins: verb == "join" }
        }
        verb => match cm_step(verb, words)? {
            Some(step) => Peer::Connection(name, Box::new(step)),
            None => return Err(format!("the peer cannot `{verb}`")),
        },
    })
}

fn new_qp(service: &str, name: String, words: &mut Words<'_>) -> Result<QpSpec, String> {
    Ok(QpSpec {
        name,
        service: words.text("type").unwrap_or(service).into(),
        state: one_of(&STATES, words.text("state").unwrap_or("RTS"))?,
        access: access(words.text("access").unwrap_or("all"))?,
        pd: words.owned("pd"),
        srq: words.owned("srq"),
        xrcd: words.owned("xrcd"),
        numbers: numbers(words, &ATTRIBUTES)?,
    })
}

fn modify(qp: String, words: &mut Words<'_>) -> Result<Modify, String> {
    Ok(Modify {
        qp,
        to: one_of(&STATES, words.required("to")?)?,
        access: words.text("access").map(access).transpose()?,
        alternate: words.flag("alternate"),
        migration: words.text("migration").map(|word| one_of(&MIGRATION, word)).transpose()?,
        refused: words.flag("refused"),
        numbers: numbers(words, &ATTRIBUTES)?,
    })
}

fn tag(srq: String, operation: &'static str, words: &mut Words<'_>) -> Result<Tag, String> {
    let name = if operation == "SYNC" { None } else { Some(words.next("the name of the tag")?.to_owned()) };
    let numbers = numbers(words, &["receive", "tag", "mask", "unexpected"])?;
    Ok(Tag { srq, operation, name, id: words.required_number("id")?, sges: sges(words)?, numbers })
}

fn bind(qp: String, words: &mut Words<'_>) -> Result<Bind, String> {
    Ok(Bind {
        qp,
        window: words.next("the window")?.into(),
        mr: words.required("mr")?.into(),
        at: words.number_or("at", "0")?,
        length: words.required_number("length")?,
        access: access(words.text("access").unwrap_or("write,read,atomic"))?,
        id: words.required_number("id")?,
    })
}

fn post(qp: String, words: &mut Words<'_>) -> Result<Post, String> {
    let operation = one_of(&OPERATIONS, words.next("the operation")?)?;
    let inline = if words.flag("inline") { words.data()? } else { None };
    Ok(Post {
        qp,
        operation,
        id: words.required_number("id")?,
        flags: FLAGS.into_iter().filter(|flag| words.flag(&flag.to_ascii_lowercase())).collect(),
        sges: sges(words)?,
        inline,
        refused: words.flag("refused"),
        numbers: numbers(words, &POST_NUMBERS)?,
    })
}

fn completion(words: &mut Words<'_>) -> Result<ExpectedCompletion, String> {
    let status = words.text("status").unwrap_or("SUCCESS").to_owned();
    let opcode = words.owned("opcode");
    Ok(ExpectedCompletion {
        id: words.required_number("id")?,
        status,
        opcode,
        numbers: numbers(words, &COMPLETION_NUMBERS)?,
    })
}

/// Parses all `sge=MR:AT:LEN`.
fn sges(words: &mut Words<'_>) -> Result<Vec<Sge>, String> {
    let one = |text: &str| {
        let mut parts = text.split(':');
        let (Some(mr), Some(at), Some(len), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
            return Err("an element is `sge=MR:AT:LEN`".to_owned());
        };
        Ok(Sge { mr: mr.into(), at: Number::parse(at)?, len: Number::parse(len)? })
    };
    words.all("sge").into_iter().map(one).collect()
}

/// Returns the bits of `enum ibv_access_flags`.
fn access(text: &str) -> Result<u32, String> {
    text.split(',').try_fold(0, |bits, right| {
        Ok(bits
            | match right {
                "none" => 0,
                "local" => 1,
                "write" => 2,
                "read" => 4,
                "atomic" => 8,
                "bind" => 16,
                "flush" => 256,
                "all" => 1 | 2 | 4 | 8,
                _ => return Err(format!("there is no right `{right}`")),
            })
    })
}

/// Numbers of a connection request or reply.
const CONN_PARAMS: [&str; 4] = ["responder_resources", "initiator_depth", "retry_cnt", "rnr_retry"];
/// States of a queue pair after `accept`.
const ACCEPT_STATES: [&str; 3] = ["INIT", "RTR", "RTS"];
/// Port spaces.
const SPACES: [&str; 2] = ["TCP", "UDP"];
/// Events of `enum rdma_cm_event_type` after a request.
const EVENTS: [&str; 8] = [
    "CONNECT_REQUEST",
    "CONNECT_RESPONSE",
    "CONNECT_ERROR",
    "UNREACHABLE",
    "REJECTED",
    "ESTABLISHED",
    "DISCONNECTED",
    "TIMEWAIT_EXIT",
];

/// Parses a function of librdmacm; `None` for other verbs.
fn cm_step(verb: &str, words: &mut Words<'_>) -> Result<Option<CmStep>, String> {
    Ok(Some(match verb {
        "listen" => CmStep::Listen { space: space(words)?, backlog: words.number("backlog")? },
        "request" => {
            let (within, numbers) = (words.time_or("within", DEFAULT_TIMEOUT)?, numbers(words, &REPORTED)?);
            CmStep::Request { of: words.required("of")?.into(), private: words.data()?, numbers, within }
        }
        "connect" => CmStep::Connect {
            qp: words.required("qp")?.into(),
            space: space(words)?,
            private: words.data()?,
            numbers: conn_params(words, &["port"])?,
        },
        "accept" => CmStep::Accept {
            qp: words.required("qp")?.into(),
            state: one_of(&ACCEPT_STATES, words.text("state").unwrap_or("RTS"))?,
            private: words.data()?,
            numbers: conn_params(words, &[])?,
        },
        "establish" => CmStep::Establish { qp: words.required("qp")?.into() },
        "reject" => CmStep::Reject { private: words.data()? },
        "disconnect" => CmStep::Disconnect,
        "notify" => CmStep::Notify,
        "forget" => CmStep::Forget,
        "cm" => {
            let within = words.time_or("within", DEFAULT_TIMEOUT)?;
            let event = one_of(&EVENTS, words.next("the event")?)?;
            let (status, numbers) = (words.number("status")?, numbers(words, &REPORTED)?);
            CmStep::Event(Box::new(ExpectedCmEvent { event, status, private: words.data()?, numbers, within }))
        }
        "quiet" => CmStep::Quiet { time: words.time_or("for", DEFAULT_IDLE)? },
        _ => return Ok(None),
    }))
}

fn space(words: &mut Words<'_>) -> Result<String, String> {
    one_of(&SPACES, words.text("space").unwrap_or("TCP"))
}

fn conn_params(words: &mut Words<'_>, more: &[&'static str]) -> Result<Numbers, String> {
    let mut found = numbers(words, &CONN_PARAMS)?;
    found.extend(numbers(words, more)?);
    Ok(found)
}

/// Removes the comment, which begins with `#` at the start of a word.
pub(super) fn without_comment(line: &str) -> &str {
    let starts = line.match_indices('#').find(|(at, _)| *at == 0 || line[..*at].ends_with(char::is_whitespace));
    starts.map_or(line, |(at, _)| &line[..at]).trim()
}

/// Splits a text into words; a quoted text is one word.
pub(super) fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    let split = text.split(move |c: char| {
        quoted ^= c == '"';
        c.is_whitespace() && !quoted
    });
    split.filter(|word| !word.is_empty())
}

/// The words of a step that are not parsed yet.
#[derive(Debug)]
struct Words<'a>(Vec<&'a str>);

impl<'a> Words<'a> {
    fn parse(text: &'a str) -> Self {
        Self(split(text).collect())
    }

    /// Removes and returns the first word.
    fn next(&mut self, what: &str) -> Result<&'a str, String> {
        if self.0.is_empty() { Err(format!("{what} is missing")) } else { Ok(self.0.remove(0)) }
    }

    /// Removes and returns the first word if it is neither `name=value` nor a keyword.
    fn next_name(&mut self, keywords: &[&str]) -> Option<&'a str> {
        let first = self.0.first()?;
        if first.contains('=') || keywords.contains(first) { None } else { Some(self.0.remove(0)) }
    }

    /// Removes the word `name`. Returns true if the word was present.
    fn flag(&mut self, name: &str) -> bool {
        let found = self.0.iter().position(|word| *word == name);
        found.is_some_and(|at| !self.0.remove(at).is_empty())
    }

    /// Removes the two words `name DURATION` and returns the duration.
    fn time_after(&mut self, name: &str) -> Result<Option<Number>, String> {
        let Some(at) = self.0.iter().position(|word| *word == name) else { return Ok(None) };
        self.0.remove(at);
        if at >= self.0.len() {
            return Err(format!("a time after `{name}` is missing"));
        }
        Number::parse_time(self.0.remove(at)).map(Some)
    }

    /// Removes the two words `name DURATION` and returns the duration, or the default one.
    fn time_or(&mut self, name: &str, default: &str) -> Result<Number, String> {
        self.time_after(name)?.map_or_else(|| Number::parse_time(default), Ok)
    }

    /// Removes `name=...` and returns its value.
    fn text(&mut self, name: &str) -> Option<&'a str> {
        let has_name = |word: &&str| word.strip_prefix(name).is_some_and(|rest| rest.starts_with('='));
        let at = self.0.iter().position(has_name)?;
        self.0.remove(at).get(name.len() + 1..)
    }

    fn owned(&mut self, name: &str) -> Option<String> {
        self.text(name).map(str::to_owned)
    }

    fn required(&mut self, name: &str) -> Result<&'a str, String> {
        self.text(name).ok_or_else(|| format!("{name}= is missing"))
    }

    /// Removes `name=NUMBER` and returns the number.
    fn number(&mut self, name: &str) -> Result<Option<Number>, String> {
        self.text(name).map(Number::parse).transpose()
    }

    fn number_or(&mut self, name: &str, default: &str) -> Result<Number, String> {
        Number::parse(self.text(name).unwrap_or(default))
    }

    fn required_number(&mut self, name: &str) -> Result<Number, String> {
        Number::parse(self.required(name)?)
    }

    /// Removes the words for bytes (`len=` with `from=` or `fill=`, `data=`, `hex=`, `word=`,
    /// `quad=` or `parts=`) and returns the bytes.
    fn data(&mut self) -> Result<Option<Data>, String> {
        if let Some(text) = self.text("data") {
            let inside = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
            return Ok(Some(Data::Bytes(inside.ok_or("data= needs a text in quotes")?.into())));
        }
        if let Some(text) = self.text("hex") {
            let bytes = from_hex(text).ok_or("hex= needs pairs of hexadecimal digits")?;
            return Ok(Some(Data::Bytes(bytes)));
        }
        if let Some(text) = self.text("parts") {
            return text.split(',').map(part).collect::<Result<_, _>>().map(|parts| Some(Data::Parts(parts)));
        }
        for (name, bytes) in [("word", 4), ("quad", 8)] {
            if let Some(value) = self.number(name)? {
                return Ok(Some(Data::Word { value, bytes }));
            }
        }
        let Some(len) = self.number("len")? else { return Ok(None) };
        let (from, fill) = (self.number("from")?, self.number("fill")?);
        Ok(Some(match (from, fill) {
            (from, None) => Data::Pattern { len, from },
            (None, Some(byte)) => Data::Fill { len, byte },
            (Some(_), Some(_)) => return Err("from= and fill= exclude each other".into()),
        }))
    }

    fn required_data(&mut self) -> Result<Data, String> {
        self.data()?.ok_or_else(|| "data is missing: use data=, hex=, word=, quad= or len=".into())
    }

    /// Removes every `name=...` and returns the values.
    fn all(&mut self, name: &str) -> Vec<&'a str> {
        std::iter::from_fn(|| self.text(name)).collect()
    }

    /// Removes all words and returns them as names with optional values.
    fn rest(&mut self) -> Vec<(&'a str, Option<&'a str>)> {
        let split = |word: &'a str| word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
        self.0.drain(..).map(split).collect()
    }

    /// Fails if a word remains.
    fn finish(&self) -> Result<(), String> {
        self.0.first().map_or(Ok(()), |word| Err(format!("`{word}` is not an argument of this step")))
    }
}

/// Parses a part of `parts=`.
fn part(text: &str) -> Result<Data, String> {
    let (kind, value) = text.split_once(':').ok_or("a part is `hex:DIGITS`, `word:N`, `quad:N` or `zeros:N`")?;
    Ok(match kind {
        "hex" => Data::Bytes(from_hex(value).ok_or("hex: needs pairs of hexadecimal digits")?),
        "word" => Data::Word { value: Number::parse(value)?, bytes: 4 },
        "quad" => Data::Word { value: Number::parse(value)?, bytes: 8 },
        "zeros" => Data::Fill { len: Number::parse(value)?, byte: Number::parse("0")? },
        _ => return Err(format!("there is no part `{kind}`")),
    })
}

/// Removes every `NAME=NUMBER` with one of these names and returns the numbers.
fn numbers(words: &mut Words<'_>, names: &[&'static str]) -> Result<Numbers, String> {
    let mut found = Numbers::new();
    for name in names {
        if let Some(number) = words.number(name)? {
            found.insert(name, number);
        }
    }
    Ok(found)
}

/// Returns the word if it is known.
fn one_of(known: &[&str], word: &str) -> Result<String, String> {
    if known.contains(&word) {
        return Ok(word.into());
    }
    Err(format!("unknown `{word}`; use one of {}", known.join(", ")))
}
