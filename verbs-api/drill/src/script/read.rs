//! Words to steps.

use super::connections;
use super::steps::{Bind, Completion, Damage, Expectation, Modify, Peer, Post, QpSpec, Sge, Skips, Spec, Step};
use super::words::{Words, numbers, one_of};
use crate::number::Number;
use crate::{layout, mad};
use std::net::IpAddr;

/// Attributes of queue pairs that scripts set, when they make one and when they modify it.
const ATTRIBUTES: [&str; 17] = [
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
];
/// States of path migration.
const MIGRATION: [&str; 3] = ["MIGRATED", "REARM", "ARMED"];
/// Numbers of a send work request.
const POSTED: [&str; 11] =
    ["remote", "rkey", "imm", "compare", "swap", "add", "invalidate", "remote_qpn", "remote_qkey", "length", "srqn"];
/// Numbers of a completion.
const COMPLETED: [&str; 4] = ["bytes", "imm", "src_qp", "invalidated"];
/// Flags of a send work request.
const FLAGS: [&str; 3] = ["FENCE", "SOLICITED", "UNSIGNALED"];
/// States of queue pairs.
const STATES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
/// What a send work request may do.
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
/// Words that stand by themselves in `send` and `expect`.
const ALONE: [&str; 11] =
    ["within", "after", "each", "eventually", "stranger", "ackreq", "solicited", "migreq", "becn", "fecn", "noackreq"];

/// The step that a line says: its first word, and the others.
pub(super) fn step(service: &str, word: &str, rest: &str) -> Result<Step, String> {
    let mut words = Words::of(rest);
    let step = match word {
        "send" => Step::Send(spec(service, &mut words)?),
        "expect" => Step::Expect(expectation(service, &mut words)?),
        "silence" => Step::Silence(Number::parse_time(words.next("how long")?)?),
        "wait" => Step::Wait(Number::parse_time(words.next("how long")?)?),
        "repeat" => Step::Repeat(Number::parse(words.next("how often")?)?, Vec::new()),
        "let" => {
            let name = words.next("the name")?;
            if words.next("`=`")? != "=" {
                return Err("a name is given with `let NAME = NUMBER`".into());
            }
            Step::Let(name.into(), Number::parse(words.next("the number")?)?)
        }
        "peer" => Step::Peer(peer(service, &mut words)?),
        _ => return Err(format!("there is no step `{word}`")),
    };
    words.finish()?;
    Ok(step)
}

/// A packet to send, or all that is said of an expected one but when.
fn spec(service: &str, words: &mut Words<'_>) -> Result<Spec, String> {
    let operation = words.next("the opcode")?;
    let bits = layout::service_bits(service).ok_or_else(|| format!("there is no service `{service}`"))?;
    let mut fields = Vec::new();
    let mut set = |name: &str, value: Number| fields.push((name.to_owned(), value));
    let mut name = operation.to_owned();
    let message = mad::named(operation);
    let opcode = match operation {
        "NAK" => {
            let code = words.next_name(&ALONE).ok_or("which NAK is missing")?;
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
    let damage = Damage {
        cut: words.number("cut")?,
        extra: words.number("extra")?,
        icrc: words.number("icrc")?,
        tos: words.number("tos")?,
        stranger: words.flag("stranger"),
        group: words.text("group").map(address).transpose()?,
    };
    let (qp, payload) = (words.text("of").map(str::to_owned), words.data()?);
    for (field, value) in words.rest() {
        let (field, value) = match (field, value) {
            ("noackreq", None) => ("ackreq", Number::parse("0")?),
            ("ackreq" | "solicited" | "migreq" | "becn" | "fecn", None) => (field, Number::parse("1")?),
            // An addend stands where the new value of a swap does.
            ("add", Some(value)) => ("swap", Number::parse(value)?),
            (field, Some(value)) if is_field(message, field) => (field, Number::parse(value)?),
            _ => return Err(format!("`{field}` means nothing here")),
        };
        set(field, value);
    }
    Ok(Spec { opcode, name, message, fields, payload, qp, damage })
}

/// Whether a script may name this field: of a message, or of any packet.
fn is_field(message: Option<&mad::Message>, name: &str) -> bool {
    let of_message = |message: &mad::Message| message.fields.iter().any(|field| field.name == name);
    !name.starts_with('_') && message.map_or_else(|| layout::is_field(name), of_message)
}

fn address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("`{text}` is no address"))
}

fn expectation(service: &str, words: &mut Words<'_>) -> Result<Expectation, String> {
    let (after, within) = (words.behind("after")?, words.behind("within")?);
    let (each, eventually) = (words.flag("each"), words.flag("eventually"));
    let named = words.text("as").map(str::to_owned);
    let spec = spec(service, words)?;
    let is_ack = spec.opcode & 0x1f == 0x11 && spec.name == "ACK";
    let skips = match (each, eventually) {
        (true, _) => Skips::Nothing,
        (_, true) => Skips::Everything,
        _ if is_ack => Skips::EarlierAcks,
        _ if spec.message.is_some() => Skips::Patience,
        _ => Skips::Nothing,
    };
    Ok(Expectation { spec, after, within, skips, named })
}

fn peer(service: &str, words: &mut Words<'_>) -> Result<Peer, String> {
    let verb = words.next("what the peer does")?;
    let name = words.next("the name of what it is about")?.to_owned();
    Ok(match verb {
        "pd" => Peer::Pd(name),
        "reg" => Peer::Register {
            name,
            length: words.number("length")?.map_or_else(|| Number::parse("4096"), Ok)?,
            access: access(words.text("access").unwrap_or("all"))?,
            fill: words.number("fill")?,
            pd: words.text("pd").map(str::to_owned),
        },
        "dereg" => Peer::Deregister(name),
        "srq" => {
            let owned = |word: Option<&str>| word.map(str::to_owned);
            Peer::Srq { name, pd: owned(words.text("pd")), xrcd: owned(words.text("xrcd")) }
        }
        "xrcd" => Peer::Xrcd(name),
        "qp" => Peer::Qp(Box::new(new_qp(service, name, words)?)),
        "modify" => Peer::Modify(Box::new(modify(name, words)?)),
        "destroy" => Peer::Destroy(name),
        "post" => Peer::Post(Box::new(post(name, words)?)),
        "recv" => Peer::Recv { queue: name, id: id(words)?, sges: sges(words)? },
        "complete" => {
            let within = words.behind("within")?;
            Peer::Complete { qp: name, wanted: completion(words)?, within }
        }
        "idle" => Peer::Idle { qp: name, time: words.behind("for")? },
        "state" => {
            let within = words.behind("within")?;
            Peer::State { qp: name, state: one_of(&STATES, words.next("the state")?)?, within }
        }
        "memory" => Peer::Memory { mr: name, at: words.number("at")?, data: words.data()?.ok_or("no bytes")? },
        "write" => Peer::Write { mr: name, at: words.number("at")?, data: words.data()?.ok_or("no bytes")? },
        "event" => Peer::Event { name, within: words.behind("within")? },
        "mw" => Peer::Window {
            name,
            kind: words.number("type")?.map_or_else(|| Number::parse("2"), Ok)?,
            pd: words.text("pd").map(str::to_owned),
        },
        "bind" => Peer::Bind(Box::new(bind(name, words)?)),
        "join" | "leave" => {
            let group = address(words.next("the group")?)?;
            Peer::Member { qp: name, group, joins: verb == "join" }
        }
        verb => match connections::read(verb, words)? {
            Some(act) => Peer::Connection(name, Box::new(act)),
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
        pd: words.text("pd").map(str::to_owned),
        srq: words.text("srq").map(str::to_owned),
        xrcd: words.text("xrcd").map(str::to_owned),
        numbers: numbers(words, &ATTRIBUTES)?,
    })
}

fn modify(qp: String, words: &mut Words<'_>) -> Result<Modify, String> {
    Ok(Modify {
        qp,
        to: one_of(&STATES, words.text("to").ok_or("to which state is missing")?)?,
        alternate: words.flag("alternate"),
        migration: words.text("migration").map(|word| one_of(&MIGRATION, word)).transpose()?,
        numbers: numbers(words, &ATTRIBUTES)?,
    })
}

fn bind(qp: String, words: &mut Words<'_>) -> Result<Bind, String> {
    Ok(Bind {
        qp,
        window: words.next("the window")?.into(),
        mr: words.text("mr").ok_or("mr= is missing")?.into(),
        at: words.number("at")?,
        length: words.number("length")?.ok_or("length= is missing")?,
        access: access(words.text("access").unwrap_or("write,read,atomic"))?,
        id: id(words)?,
    })
}

fn post(qp: String, words: &mut Words<'_>) -> Result<Post, String> {
    let operation = one_of(&OPERATIONS, words.next("the operation")?)?;
    let inline = if words.flag("inline") { words.data()? } else { None };
    Ok(Post {
        qp,
        operation,
        id: id(words)?,
        flags: FLAGS.into_iter().filter(|flag| words.flag(&flag.to_ascii_lowercase())).collect(),
        sges: sges(words)?,
        inline,
        refused: words.flag("refused"),
        numbers: numbers(words, &POSTED)?,
    })
}

fn completion(words: &mut Words<'_>) -> Result<Completion, String> {
    let status = words.text("status").unwrap_or("SUCCESS").to_owned();
    let opcode = words.text("opcode").map(str::to_owned);
    Ok(Completion { id: id(words)?, status, opcode, numbers: numbers(words, &COMPLETED)? })
}

fn id(words: &mut Words<'_>) -> Result<Number, String> {
    words.number("id")?.ok_or_else(|| "id= is missing".into())
}

/// All of `sge=MR:AT:LEN`.
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

/// The bits of `enum ibv_access_flags`.
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
