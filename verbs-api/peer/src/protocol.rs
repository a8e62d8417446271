//! The lines between controller and agent: one JSON object each, UTF-8, ended by `\n`.
//!
//! A request is `{"id": N, "do": "NAME", ...arguments}`, its answer `{"id": N, "ok": {...}}` or
//! `{"id": N, "err": "TEXT", "errno": N}`; one answer a request, in their order. Numbers are JSON
//! numbers or strings (`"0x1f"`, `"31"`); bytes are hexadecimal strings; flags are a list of names,
//! names with `|` between them, or a number; GIDs are written as IPv6 addresses. A request with an
//! argument that its command does not have is refused.
//!
//! The commands and their arguments are [`Command`] and [`Command::arguments`], told in words in
//! `docs/peer.md`; the names of opcodes, states and flags are in [`names`]. Touches nothing.

mod args;
mod command;
pub mod limits;
pub mod names;
mod refusal;
mod runs;

pub use args::{Args, from_hex, to_hex};
pub use command::Command;
use refusal::shortened;
pub use refusal::{Refusal, Result};
pub use runs::{from_runs, to_runs};
use serde_json::{Map, Value};

/// The version of the protocol, which `hello` answers.
pub const VERSION: u64 = 1;

/// The TCP port that an agent listens on and a controller tries, unless another one is named.
pub const DEFAULT_PORT: u16 = 14791;

/// One request, its command known and its arguments among those of the command.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The number that the answer bears.
    pub id: u64,
    /// What to do.
    pub command: Command,
    /// With what.
    pub args: Args,
}

impl Request {
    /// Reads one line, with or without its end.
    ///
    /// # Errors
    /// What is wrong with it, and the id that it bears, 0 if none can be read.
    pub fn parse(line: &[u8]) -> std::result::Result<Self, (u64, Refusal)> {
        let value: Value =
            serde_json::from_slice(line).map_err(|error| (0, Refusal::invalid(format!("not JSON: {error}"))))?;
        let Value::Object(mut object) = value else {
            return Err((0, Refusal::invalid("a request is a JSON object")));
        };
        let id = object.remove("id").as_ref().and_then(Value::as_u64);
        let id = id.ok_or_else(|| (0, Refusal::invalid("a request has an id, a number")))?;
        let name = object.remove("do");
        let name = name.as_ref().and_then(Value::as_str);
        let name = name.ok_or_else(|| (id, Refusal::invalid("a request has a name in \"do\"")))?;
        let command = Command::named(name)
            .ok_or_else(|| (id, Refusal::invalid(format!("there is no command {}", shortened(name)))))?;
        if let Some(other) = object.keys().find(|key| !command.arguments().contains(&key.as_str())) {
            return Err((id, Refusal::invalid(format!("{name} has no argument {}", shortened(other)))));
        }
        Ok(Self { id, command, args: Args::new(object) })
    }

    /// The line of this request, with its end.
    #[must_use]
    pub fn line(&self) -> String {
        let mut object = self.args.object().clone();
        object.insert("id".to_owned(), self.id.into());
        object.insert("do".to_owned(), self.command.name().into());
        format!("{}\n", Value::Object(object))
    }
}

/// The line of an answer, with its end.
#[must_use]
pub fn answer(id: u64, result: &Result<Value>) -> String {
    let value = match result {
        Ok(value) => serde_json::json!({"id": id, "ok": value}),
        Err(refusal) => serde_json::json!({"id": id, "err": refusal.text, "errno": refusal.errno}),
    };
    format!("{value}\n")
}

/// Reads an answer: the id that it bears, and what it says. `None` if it is no answer.
#[must_use]
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

/// The object of arguments in `value`; none if it is null.
///
/// # Errors
/// If it is neither.
pub fn arguments(value: Value) -> Result<Map<String, Value>> {
    match value {
        Value::Object(object) => Ok(object),
        Value::Null => Ok(Map::new()),
        other => Err(Refusal::invalid(format!("arguments are an object, not {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(line: &str) -> (u64, String) {
        let (id, refusal) = Request::parse(line.as_bytes()).unwrap_err();
        (id, refusal.text)
    }

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let line = "{\"do\":\"read\",\"id\":7,\"length\":\"0x10\",\"mr\":3,\"offset\":0}\n";
        let request = Request::parse(line.as_bytes()).unwrap();
        assert_eq!((request.id, request.command), (7, Command::Read));
        assert_eq!(request.args.number::<u64>("length"), Ok(16));
        assert_eq!(Request::parse(request.line().as_bytes()).unwrap(), request);
    }

    #[test]
    fn what_is_no_request_is_told_with_the_id_that_can_be_read() {
        assert_eq!(refused("[]"), (0, "a request is a JSON object".into()));
        assert_eq!(refused("{\"do\":\"bye\"}"), (0, "a request has an id, a number".into()));
        assert_eq!(refused("{\"id\":4}"), (4, "a request has a name in \"do\"".into()));
        assert_eq!(refused("{\"id\":4,\"do\":\"jump\"}"), (4, "there is no command jump".into()));
        assert_eq!(refused("{\"id\":4,\"do\":\"bye\",\"now\":1}"), (4, "bye has no argument now".into()));
        assert!(refused("{\"id\":4,").1.starts_with("not JSON"));
    }

    #[test]
    fn an_answer_is_read_as_it_was_written() {
        for result in [Ok(serde_json::json!({"qp": 1})), Err(Refusal { text: "no".into(), errno: 16 })] {
            assert_eq!(parse_answer(answer(9, &result).as_bytes()), Some((9, result)));
        }
        assert_eq!(parse_answer(b"{\"id\":1}"), None);
    }
}
