//! The lines between controller and agent: one JSON object each, in UTF-8, ended by `\n`.
//!
//! A request is `{"id": N, "do": "NAME", ...arguments}`, its answer `{"id": N, "ok": {...}}` or
//! `{"id": N, "err": "TEXT", "errno": N}`; one answer per request, in the order of the requests.
//! Numbers are JSON numbers or strings (`"0x1f"`, `"31"`); bytes are hexadecimal strings; flags are
//! a list of names, names with `|` between them, or a number; GIDs are written as IPv6 addresses. A
//! request with an unknown argument is refused.
//!
//! `docs/reference/agent.md` describes the commands and their arguments ([`Command::arguments`]).
//! [`names`] has the names of opcodes, states and flags.

pub mod limits;
pub mod names;

use names::Table;
use serde_json::{Map, Value, json};
use std::net::{IpAddr, Ipv6Addr};
use std::{fmt, io};

/// Version of the protocol, in the answer to `hello`.
pub const VERSION: u64 = 1;

/// Default TCP port of an agent.
pub const DEFAULT_PORT: u16 = 14791;

/// A request whose command and arguments are known.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The number that the answer repeats.
    pub id: u64,
    /// Command to execute.
    pub command: Command,
    /// Arguments of the command.
    pub args: Args,
}

impl Request {
    /// Parses one line, with or without its `\n`. Fails if `line` is not a request; the error has
    /// its id, or 0 without one.
    pub fn parse(line: &[u8]) -> std::result::Result<Self, (u64, Refusal)> {
        let value: Value =
            serde_json::from_slice(line).map_err(|error| (0, Refusal::invalid(format!("not JSON: {error}"))))?;
        let Value::Object(mut object) = value else {
            return Err((0, Refusal::invalid("a request must be a JSON object")));
        };
        let id = object.remove("id").as_ref().and_then(Value::as_u64);
        let id = id.ok_or_else(|| (0, Refusal::invalid("the number id is missing")))?;
        let name = object.remove("do");
        let name = name.as_ref().and_then(Value::as_str);
        let name = name.ok_or_else(|| (id, Refusal::invalid("the text do, a command, is missing")))?;
        let command = Command::named(name)
            .ok_or_else(|| (id, Refusal::invalid(format!("there is no command {}", shortened(name)))))?;
        if let Some(other) = object.keys().find(|key| !command.arguments().contains(&key.as_str())) {
            return Err((id, Refusal::invalid(format!("{name} has no argument {}", shortened(other)))));
        }
        Ok(Self { id, command, args: Args::new(object) })
    }

    /// Returns the line of this request, with its `\n`.
    pub fn line(&self) -> String {
        let mut object = self.args.object().clone();
        object.insert("id".to_owned(), self.id.into());
        object.insert("do".to_owned(), self.command.name().into());
        format!("{}\n", Value::Object(object))
    }
}

/// Returns the line of an answer, with its `\n`.
pub fn answer(id: u64, result: &Result<Value>) -> String {
    let value = match result {
        Ok(value) => json!({"id": id, "ok": value}),
        Err(refusal) => json!({"id": id, "err": refusal.text, "errno": refusal.errno}),
    };
    format!("{value}\n")
}

/// Parses an answer into its id and its result; `None` if `line` is not an answer.
pub fn parse_answer(line: &[u8]) -> Option<(u64, Result<Value>)> {
    let Ok(Value::Object(mut object)) = serde_json::from_slice(line) else { return None };
    let id = object.get("id")?.as_u64()?;
    if let Some(value) = object.remove("ok") {
        return Some((id, Ok(value)));
    }
    let text = object.get("err")?.as_str()?.to_owned();
    let errno = object.get("errno").and_then(Value::as_i64).and_then(|errno| i32::try_from(errno).ok());
    Some((id, Err(Refusal { text, errno: errno.unwrap_or(libc::EIO) })))
}

/// Returns the arguments in `value`, an object or null. Fails if `value` is neither.
pub fn arguments(value: Value) -> Result<Map<String, Value>> {
    match value {
        Value::Object(object) => Ok(object),
        Value::Null => Ok(Map::new()),
        other => Err(Refusal::invalid(format!("arguments are an object, not {other}"))),
    }
}

/// The reason why the agent, or the verb that it called, refused a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text} (errno {errno})")]
pub struct Refusal {
    /// The operation that failed, and the reason.
    pub text: String,
    /// The errno of the verb; `EINVAL` if the agent refused the request itself.
    pub errno: i32,
}

impl Refusal {
    /// Returns the refusal of an invalid request, with `EINVAL`.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self { text: text.into(), errno: libc::EINVAL }
    }

    pub(crate) fn os(what: impl fmt::Display, error: &io::Error) -> Self {
        let (mut text, errno) = (format!("{what}: {error}"), error.raw_os_error().unwrap_or(libc::EIO));
        // `Display` of this type appends the errno itself.
        let end = format!(" (os error {errno})");
        text.truncate(text.strip_suffix(&end).unwrap_or(&text).len());
        Self { text, errno }
    }
}

/// The result of a request.
pub type Result<T> = std::result::Result<T, Refusal>;

/// Returns the first 40 characters of an untrusted text, escaped, for a message.
fn shortened(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

macro_rules! commands {
    ($($(#[$doc:meta])* $variant:ident $name:literal [$($argument:literal)*];)+) => {
        /// A command of an agent. Its arguments are those of the verb of the same name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Command {
            $($(#[$doc])* $variant,)+
        }

        impl Command {
            /// Every command.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// Returns the name of the command, the value of `"do"`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Returns the names of the command's arguments.
            pub const fn arguments(self) -> &'static [&'static str] {
                match self {
                    $(Self::$variant => &[$($argument,)*],)+
                }
            }
        }
    };
}

commands! {
    /// Opens the session with the token; answers the attributes of the card.
    Hello "hello" ["token"];
    /// Registers memory of the agent: `{mr, addr, lkey, rkey}`. The address of byte `edge`, a
    /// multiple of the page size, is a multiple of 4 GiB.
    Reg "reg" ["length" "access" "fill" "pd" "edge"];
    /// Deregisters memory.
    Dereg "dereg" ["mr"];
    /// Changes the rights of a region: `{lkey, rkey}`.
    Rereg "rereg" ["mr" "access"];
    /// Allocates a protection domain: `{pd}`.
    AllocPd "alloc_pd" [];
    /// Creates a completion queue with its channel, with `tags` one that reports tags: `{cq, cqe}`.
    CreateCq "create_cq" ["cqe" "tags"];
    /// Changes the number of entries of a completion queue: `{cqe}`.
    ResizeCq "resize_cq" ["cq" "cqe"];
    /// Creates a shared receive queue: `{srq}`; in an XRC domain, with the completion queue `cq`,
    /// `{srq, srqn}`; with this many `tags` and the completion queue `cq`, one that matches tags.
    CreateSrq "create_srq" ["pd" "max_wr" "max_sge" "xrcd" "cq" "tags"];
    /// Posts one operation on the tags of a shared receive queue: `{handle}`.
    PostTag "post_tag" ["srq" "op" "wr_id" "recv_wr_id" "tag" "mask" "sge" "handle" "unexpected"];
    /// Sets the limit of a shared receive queue.
    ModifySrq "modify_srq" ["srq" "limit"];
    /// Opens an XRC domain: `{xrcd}`.
    OpenXrcd "open_xrcd" [];
    /// Creates a queue pair: `{qp, qpn, cq, recv_cq}`.
    CreateQp "create_qp"
        ["type" "pd" "cq" "recv_cq" "srq" "xrcd" "max_send_wr" "max_recv_wr" "max_sge" "max_inline" "sig_all"];
    /// Changes state and attributes; required attributes that are not given have a default, unless
    /// `exact` is true.
    ModifyQp "modify_qp"
        ["qp" "to" "exact" "port" "access" "qkey" "path_mtu" "dest_qpn" "rq_psn" "sq_psn" "dgid" "sgid_index"
         "hop_limit" "traffic_class" "flow_label" "sl" "timeout" "retry_cnt" "rnr_retry" "min_rnr_timer"
         "max_rd_atomic" "max_dest_rd_atomic" "pkey_index" "sqd_event" "alt_dgid" "alt_timeout" "path_mig"];
    /// Queries the state and attributes of a queue pair.
    QueryQp "query_qp" ["qp"];
    /// Posts one send request.
    PostSend "post_send"
        ["qp" "wr_id" "opcode" "flags" "sge" "remote_addr" "rkey" "imm" "invalidate_rkey" "compare_add" "swap"
         "inline_data" "ah" "remote_qpn" "remote_qkey" "remote_srqn"];
    /// Posts one receive request, on a QP or an SRQ.
    PostRecv "post_recv" ["qp" "srq" "wr_id" "sge"];
    /// Waits for `min` (by default 1) completions, then polls: `{completions}`.
    Poll "poll" ["cq" "max" "min" "timeout_ms"];
    /// Requests an event for the next completion, or for the next solicited one.
    Notify "notify" ["cq" "solicited"];
    /// Waits for the requested event: `{fired}`.
    CqEvent "cq_event" ["cq" "timeout_ms"];
    /// Reads bytes of a region: `{hex}`, or `{runs}`.
    Read "read" ["mr" "offset" "length" "runs"];
    /// Writes bytes of a region: `hex`, or `length` times the byte `fill`.
    Write "write" ["mr" "offset" "hex" "fill" "length"];
    /// Waits for an asynchronous event, then reads all: `{events}`.
    Events "events" ["timeout_ms"];
    /// Creates an address handle: `{ah}`.
    CreateAh "create_ah" ["pd" "dgid" "sgid_index" "port" "hop_limit" "traffic_class" "flow_label" "sl"];
    /// Allocates a memory window: `{mw, rkey}`.
    AllocMw "alloc_mw" ["pd" "type"];
    /// Posts the binding of a window: `{rkey}`.
    BindMw "bind_mw" ["qp" "mw" "mr" "offset" "length" "access" "wr_id" "flags"];
    /// Attaches a UD QP to a multicast group.
    AttachMcast "attach_mcast" ["qp" "gid"];
    /// Detaches a UD QP from a multicast group.
    DetachMcast "detach_mcast" ["qp" "gid"];
    /// Listens for requests at an address and a port; 0 for any port: `{cm, port}`.
    CmListen "cm_listen" ["gid" "port" "space" "backlog"];
    /// Requests a connection to a service, and modifies the queue pair to INIT: `{cm}`.
    CmConnect "cm_connect"
        ["gid" "from" "port" "space" "qp" "hex" "responder_resources" "initiator_depth" "retry_cnt" "rnr_retry"];
    /// Accepts a request, and modifies the queue pair to RTS, or only to `to`.
    CmAccept "cm_accept"
        ["cm" "qp" "to" "hex" "responder_resources" "initiator_depth" "retry_cnt" "rnr_retry"];
    /// Confirms a response, and modifies the queue pair to RTS.
    CmEstablish "cm_establish" ["cm" "qp"];
    /// Rejects a request or a response.
    CmReject "cm_reject" ["cm" "hex"];
    /// Disconnects, or confirms a disconnect.
    CmDisconnect "cm_disconnect" ["cm"];
    /// Reports to librdmacm that COMM_EST was raised.
    CmNotify "cm_notify" ["cm"];
    /// Waits for an event of the connection manager, then reads all: `{events}`.
    CmEvents "cm_events" ["timeout_ms"];
    /// Reads the hardware counters of the port: `{name: value}`.
    Counters "counters" [];
    /// Destroys an object.
    Destroy "destroy" ["kind" "handle"];
    /// Destroys all objects.
    Reset "reset" [];
    /// Ends the session.
    Bye "bye" [];
}

impl Command {
    /// Returns the command of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|command| command.name() == name)
    }
}

/// The arguments of a request, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Args(Map<String, Value>);

impl Args {
    /// Wraps the members of a request.
    pub const fn new(object: Map<String, Value>) -> Self {
        Self(object)
    }

    /// Returns the JSON object of the arguments.
    pub const fn object(&self) -> &Map<String, Value> {
        &self.0
    }

    fn value(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    /// Returns true if the argument was given.
    pub fn has(&self, name: &str) -> bool {
        self.value(name).is_some()
    }

    /// Returns an optional number. Fails if it is not a number, or out of range.
    pub fn optional<T: TryFrom<u64>>(&self, name: &str) -> Result<Option<T>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let number = read_number(value).ok_or_else(|| Refusal::invalid(format!("{name} must be a number")))?;
        T::try_from(number).map(Some).map_err(|_| Refusal::invalid(format!("{name} {number} is too large")))
    }

    /// Returns a number. Fails if it is missing, not a number, or out of range.
    pub fn number<T: TryFrom<u64>>(&self, name: &str) -> Result<T> {
        self.optional(name)?.ok_or_else(|| missing(name))
    }

    /// Returns a number, or `otherwise` if it was not given. Fails if it is not a number, or out of
    /// range.
    pub fn or<T: TryFrom<u64>>(&self, name: &str, otherwise: T) -> Result<T> {
        Ok(self.optional(name)?.unwrap_or(otherwise))
    }

    /// Returns a boolean, by default false. Fails if it has another type.
    pub fn is_set(&self, name: &str) -> Result<bool> {
        match self.value(name) {
            None => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| Refusal::invalid(format!("{name} must be true or false"))),
        }
    }

    /// Returns a text. Fails if it is missing or not a text.
    pub fn text(&self, name: &str) -> Result<&str> {
        let value = self.value(name).ok_or_else(|| missing(name))?;
        value.as_str().ok_or_else(|| Refusal::invalid(format!("{name} must be a text")))
    }

    /// Returns the number of the argument's name in `table`. Fails if the argument is missing, or
    /// its name is not in the table.
    pub fn named(&self, name: &str, table: Table) -> Result<u32> {
        let text = self.text(name)?;
        names::number(table, text).ok_or_else(|| unknown(name, text, table))
    }

    /// Returns optional flags: names in a list, names with `|` between them, or a number. Fails if
    /// one of them is not in the table.
    pub fn flags(&self, name: &str, table: Table) -> Result<Option<u32>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let bit = |text: &str| names::number(table, text).ok_or_else(|| unknown(name, text, table));
        let union = |bits: u32, text: &str| Ok(bits | bit(text)?);
        match value {
            Value::Array(list) => list.iter().try_fold(0, |bits, text| {
                let text = text.as_str().ok_or_else(|| Refusal::invalid(format!("{name} must be a list of names")))?;
                union(bits, text)
            }),
            Value::String(text) if read_number(value).is_none() => {
                text.split('|').map(str::trim).filter(|text| !text.is_empty()).try_fold(0, union)
            }
            _ => {
                let bits = self.number(name)?;
                let known = table.iter().fold(0, |known, (_, bit)| known | bit);
                if bits & !known != 0 {
                    return Err(Refusal::invalid(format!("{name}: {:#x} is not a known flag", bits & !known)));
                }
                Ok(bits)
            }
        }
        .map(Some)
    }

    /// Returns optional bytes. Fails if they are not a hexadecimal text.
    pub fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let bytes = value.as_str().and_then(from_hex);
        bytes.map(Some).ok_or_else(|| Refusal::invalid(format!("{name} must be bytes as a hexadecimal text")))
    }

    /// Returns an optional GID: an IPv6 address, or an IPv4 address, which is mapped. Fails if it
    /// is not an address.
    pub fn gid(&self, name: &str) -> Result<Option<[u8; 16]>> {
        if !self.has(name) {
            return Ok(None);
        }
        let address = match self.text(name)?.parse() {
            Ok(IpAddr::V4(address)) => address.to_ipv6_mapped(),
            Ok(IpAddr::V6(address)) => address,
            Err(_) => return Err(Refusal::invalid(format!("{name} must be an IPv6 or IPv4 address"))),
        };
        Ok(Some(Ipv6Addr::octets(&address)))
    }

    /// Returns a list of objects, empty if it was not given. Fails if it is not a list of objects,
    /// or an object has a member that is not in `known`.
    pub fn objects(&self, name: &str, known: &[&str]) -> Result<Vec<Self>> {
        let Some(value) = self.value(name) else { return Ok(Vec::new()) };
        let list = value.as_array().ok_or_else(|| Refusal::invalid(format!("{name} must be a list")))?;
        list.iter()
            .map(|item| match item {
                Value::Object(object) if object.keys().all(|key| known.contains(&key.as_str())) => {
                    Ok(Self(object.clone()))
                }
                _ => Err(Refusal::invalid(format!("{name} must be a list of objects with {}", known.join(", ")))),
            })
            .collect()
    }
}

fn read_number(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        },
        _ => None,
    }
}

fn missing(name: &str) -> Refusal {
    Refusal::invalid(format!("{name} is missing"))
}

fn unknown(name: &str, text: &str, table: Table) -> Refusal {
    let known: Vec<_> = table.iter().map(|(name, _)| *name).collect();
    Refusal::invalid(format!("{name} {} is unknown; use {}", shortened(text), known.join(", ")))
}

/// Parses hexadecimal bytes.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

/// Formats bytes in hexadecimal.
pub fn to_hex(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Minimum number of equal bytes that become a run.
const MIN_RUN: usize = 16;

/// Compresses bytes into runs: pairs of bytes in hexadecimal and their number of repetitions.
pub fn to_runs(bytes: &[u8]) -> Value {
    let mut runs = Vec::new();
    let mut push = |bytes: &[u8], times: usize| {
        if !bytes.is_empty() {
            runs.push(json!([to_hex(bytes), times]));
        }
    };
    let (mut done, mut end) = (0, 0);
    for equal in bytes.chunk_by(|a, b| a == b) {
        let begin = end;
        end += equal.len();
        if equal.len() >= MIN_RUN {
            push(&bytes[done..begin], 1);
            push(&equal[..1], equal.len());
            done = end;
        }
    }
    push(&bytes[done..], 1);
    Value::Array(runs)
}

/// Returns the bytes of runs; `None` if they are invalid, or not `len` bytes.
pub fn from_runs(runs: &Value, len: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for run in runs.as_array()? {
        let (part, times) = (from_hex(run[0].as_str()?)?, usize::try_from(run[1].as_u64()?).ok()?);
        if part.len().checked_mul(times)? > len - bytes.len() {
            return None;
        }
        bytes.extend(part.repeat(times));
    }
    (bytes.len() == len).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::names::ACCESS;
    use super::*;

    fn refused(line: &str) -> (u64, String) {
        let (id, refusal) = Request::parse(line.as_bytes()).unwrap_err();
        (id, refusal.text)
    }

    #[test]
    fn request_roundtrips() {
        let line = "{\"do\":\"read\",\"id\":7,\"length\":\"0x10\",\"mr\":3,\"offset\":0}\n";
        let request = Request::parse(line.as_bytes()).unwrap();
        assert_eq!((request.id, request.command), (7, Command::Read));
        assert_eq!(request.args.number::<u64>("length"), Ok(16));
        assert_eq!(Request::parse(request.line().as_bytes()).unwrap(), request);
    }

    #[test]
    fn invalid_request_is_refused_with_its_id() {
        assert_eq!(refused("[]"), (0, "a request must be a JSON object".into()));
        assert_eq!(refused("{\"do\":\"bye\"}"), (0, "the number id is missing".into()));
        assert_eq!(refused("{\"id\":4}"), (4, "the text do, a command, is missing".into()));
        assert_eq!(refused("{\"id\":4,\"do\":\"jump\"}"), (4, "there is no command jump".into()));
        assert_eq!(refused("{\"id\":4,\"do\":\"bye\",\"now\":1}"), (4, "bye has no argument now".into()));
        assert!(refused("{\"id\":4,").1.starts_with("not JSON"));
    }

    #[test]
    fn answer_roundtrips() {
        for result in [Ok(json!({"qp": 1})), Err(Refusal { text: "no".into(), errno: 16 })] {
            assert_eq!(parse_answer(answer(9, &result).as_bytes()), Some((9, result)));
        }
        assert_eq!(parse_answer(b"{\"id\":1}"), None);
    }

    #[test]
    fn system_refusal_prints_errno_once() {
        let text = Refusal::os("cannot listen", &io::Error::from_raw_os_error(libc::EACCES)).to_string();
        assert_eq!(text, "cannot listen: Permission denied (errno 13)");
    }

    fn args(value: Value) -> Args {
        let Value::Object(object) = value else { panic!("no object") };
        Args::new(object)
    }

    #[test]
    fn flags_are_known_names_or_bits() {
        let read = |value: Value| args(json!({ "access": value })).flags("access", ACCESS);
        assert_eq!(read(json!(["LOCAL_WRITE", "REMOTE_READ"])), Ok(Some(5)));
        assert_eq!(read("LOCAL_WRITE | REMOTE_READ".into()), Ok(Some(5)));
        assert_eq!((read(5.into()), read("0x5".into()), read("".into())), (Ok(Some(5)), Ok(Some(5)), Ok(Some(0))));
        assert_eq!(read(Value::Null), Ok(None));
        assert!(read(64.into()).is_err() && read("ALL".into()).is_err() && read(Value::Bool(true)).is_err());
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let args = args(json!({"a": 256, "b": -1, "c": "0xffffffffffffffff"}));
        assert!(args.number::<u8>("a").is_err() && args.number::<u64>("b").is_err());
        assert_eq!(args.number::<u64>("c"), Ok(u64::MAX));
        assert_eq!(args.number::<u8>("d").unwrap_err().text, "d is missing");
    }

    #[test]
    fn hex_roundtrips() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&to_hex(&bytes)), Some(bytes));
        assert_eq!((from_hex("0"), from_hex("0g"), from_hex("éa")), (None, None, None));
    }

    #[test]
    fn ipv4_address_becomes_mapped_gid() {
        let args = args(json!({"dgid": "10.0.0.1", "b": "x"}));
        let gid = args.gid("dgid").unwrap().unwrap();
        assert_eq!((&gid[..12], &gid[12..]), (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255][..], &[10, 0, 0, 1][..]));
        assert!(args.gid("b").is_err() && args.gid("c").unwrap().is_none());
    }

    #[test]
    fn runs_roundtrip() {
        let mut bytes = [7; 100];
        for (len, at, byte) in [(0, 0, 7), (1, 0, 7), (15, 3, 1), (16, 3, 1), (100, 0, 1), (100, 99, 1), (100, 50, 1)] {
            bytes[at] = byte;
            assert_eq!(from_runs(&to_runs(&bytes[..len]), len).as_deref(), Some(&bytes[..len]));
        }
    }

    #[test]
    fn equal_bytes_become_one_run() {
        let mut bytes = vec![7; 8192];
        assert_eq!(to_runs(&bytes), json!([["07", 8192]]));
        bytes[4000] = 1;
        assert_eq!(to_runs(&bytes), json!([["07", 4000], ["01", 1], ["07", 4191]]));
    }

    #[test]
    fn runs_of_wrong_length_are_refused() {
        for runs in [json!([["07", 5]]), json!([["07", 3]]), json!([["0707", u64::MAX]]), json!([["0", 4]]), json!(4)] {
            assert_eq!(from_runs(&runs, 4), None, "{runs}");
        }
        assert_eq!(from_runs(&json!([["", 9], ["0707", 2]]), 4), Some(vec![7; 4]));
    }
}
