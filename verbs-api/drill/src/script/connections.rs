//! Words to steps: what the far side does by librdmacm.

use super::steps::{Act, Numbers};
use super::words::{Words, numbers, one_of};

/// Numbers of a connection that is asked for or accepted.
const TERMS: [&str; 4] = ["responder_resources", "initiator_depth", "retry_cnt", "rnr_retry"];
/// How far a queue pair is brought when a request is accepted.
const STATES: [&str; 3] = ["INIT", "RTR", "RTS"];
/// Port spaces.
const SPACES: [&str; 2] = ["TCP", "UDP"];
/// `enum rdma_cm_event_type`: those that follow on a request.
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

/// The step that this verb begins, if it is one of librdmacm.
pub(super) fn read(verb: &str, words: &mut Words<'_>) -> Result<Option<Act>, String> {
    Ok(Some(match verb {
        "listen" => Act::Listen { space: space(words)? },
        "request" => {
            let within = words.behind("within")?;
            Act::Request { of: named(words, "of")?, private: words.data()?, within }
        }
        "connect" => Act::Connect {
            qp: named(words, "qp")?,
            space: space(words)?,
            private: words.data()?,
            numbers: terms(words, &["port"])?,
        },
        "accept" => Act::Accept {
            qp: named(words, "qp")?,
            state: one_of(&STATES, words.text("state").unwrap_or("RTS"))?,
            private: words.data()?,
            numbers: terms(words, &[])?,
        },
        "establish" => Act::Establish { qp: named(words, "qp")? },
        "reject" => Act::Reject { private: words.data()? },
        "disconnect" => Act::Disconnect,
        "notify" => Act::Notify,
        "forget" => Act::Forget,
        "cm" => {
            let within = words.behind("within")?;
            let event = one_of(&EVENTS, words.next("the event")?)?;
            Act::Event { event, status: words.number("status")?, private: words.data()?, within }
        }
        "quiet" => Act::Quiet { time: words.behind("for")? },
        _ => return Ok(None),
    }))
}

fn named(words: &mut Words<'_>, what: &str) -> Result<String, String> {
    words.text(what).map(str::to_owned).ok_or_else(|| format!("{what}= is missing"))
}

fn space(words: &mut Words<'_>) -> Result<String, String> {
    one_of(&SPACES, words.text("space").unwrap_or("TCP"))
}

fn terms(words: &mut Words<'_>, more: &[&'static str]) -> Result<Numbers, String> {
    let mut found = numbers(words, &TERMS)?;
    found.extend(numbers(words, more)?);
    Ok(found)
}
