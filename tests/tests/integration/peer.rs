//! Tests the agent (`roxe peer`) over loopback: it authenticates controllers, releases the objects
//! of a session, and gives controllers no access to memory outside its buffers. Two agents run
//! every operation between their cards.

use roxe_peer::client::{Client, ClientError};
use roxe_peer::protocol::{Command as Do, limits};
use roxe_tests::agent::Agent;
use roxe_tests::build;
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

fn refusal(result: Result<Value, ClientError>) -> (String, i32) {
    match result {
        Err(ClientError::Refused(refusal)) => (refusal.text, refusal.errno),
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn controller_without_token_and_second_one_are_refused() {
    let agent = Agent::start(&[]).unwrap();
    let error = Client::connect(&agent.address, "0000").unwrap_err();
    assert_eq!(error.errno(), Some(libc::EACCES), "{error}");
    let first = agent.client().unwrap();
    let error = Client::connect(&agent.address, &agent.token).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EBUSY), "{error}");
    drop(first);
    // The agent notices that the first controller has disconnected at its next read.
    let again = (0..1000).find_map(|_| match Client::connect(&agent.address, &agent.token) {
        Ok(client) => Some(client),
        Err(error) if error.errno() == Some(libc::EBUSY) => {
            std::thread::yield_now();
            None
        }
        Err(error) => panic!("{error}"),
    });
    assert!(again.is_some(), "the session ends with its connection");
}

#[test]
fn endless_line_closes_connection_but_not_agent() {
    let agent = Agent::start(&[]).unwrap();
    let mut stream = TcpStream::connect(&agent.address).unwrap();
    stream.write_all(&vec![b' '; limits::FIRST_LINE]).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("a line must have at most"), "{answer}");
    assert_eq!(agent.client().unwrap().name(), "roxe0");
}

#[test]
fn memory_access_is_limited_to_regions() {
    let agent = Agent::start(&[]).unwrap();
    let mut client = agent.client().unwrap();
    let mr = client.call(Do::Reg, json!({"length": 64, "access": "LOCAL_WRITE", "fill": "0102"})).unwrap();
    let (mr, qp) = (mr["mr"].clone(), client.call(Do::CreateQp, json!({"type": "RC"})).unwrap()["qp"].clone());
    let read = client.call(Do::Read, json!({"mr": mr, "offset": 61, "length": 3})).unwrap();
    assert_eq!(read["hex"], "020102");
    for (command, arguments) in [
        (Do::Read, json!({"mr": mr, "offset": 61, "length": 4})),
        (Do::Read, json!({"mr": mr, "offset": u64::MAX, "length": 2})),
        (Do::Write, json!({"mr": mr, "offset": 64, "hex": "00"})),
        (Do::Read, json!({"mr": qp, "offset": 0, "length": 1})),
        (Do::PostRecv, json!({"qp": qp, "sge": [{"mr": mr, "offset": 1, "length": 64}]})),
        // The library itself would read inline data from this address.
        (
            Do::PostSend,
            json!({"qp": qp, "opcode": "SEND", "flags": "INLINE",
            "sge": [{"addr": 4096, "length": 8, "lkey": 0}]}),
        ),
        (Do::PostSend, json!({"qp": qp, "opcode": "BIND_MW"})),
        (Do::Reg, json!({"length": limits::MEMORY, "access": 0})),
    ] {
        let (text, errno) = refusal(client.call(command, arguments));
        assert!(matches!(errno, libc::EINVAL | libc::ENOMEM), "{text}");
    }
    // Raw addresses are passed to the card, which checks the key.
    let sge = json!([{"addr": 4096, "length": 8, "lkey": 1}]);
    client.call(Do::ModifyQp, json!({"qp": qp, "to": "INIT"})).unwrap();
    client.call(Do::PostRecv, json!({"qp": qp, "sge": sge})).unwrap();
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let agent = Agent::start(&[]).unwrap();
    let mut client = agent.client().unwrap();
    let mr = client.call(Do::Reg, json!({"length": 64, "access": "LOCAL_WRITE"})).unwrap()["mr"].clone();
    let write = |fill: u8| json!({"mr": mr, "fill": fill, "length": 2, "offset": 1});
    for fill in 0..100 {
        client.ask(Do::Write, write(fill)).unwrap();
        client.ask(Do::Read, json!({"mr": mr, "length": 4})).unwrap();
    }
    client.ask(Do::Write, json!({"mr": mr, "offset": 64, "fill": 1, "length": 1})).unwrap();
    let mut answers = client.answers().unwrap();
    assert_eq!(refusal(answers.pop().unwrap().map_err(ClientError::Refused)).1, libc::EINVAL);
    for (fill, pair) in answers.chunks(2).enumerate() {
        assert_eq!(pair[1].as_ref().unwrap()["hex"], format!("00{fill:02x}{fill:02x}00"));
    }
    // Requests that arrive together with the last one are answered, too.
    client.ask(Do::Counters, Value::Null).unwrap();
    client.ask(Do::Bye, Value::Null).unwrap();
    assert_eq!(client.answers().unwrap().len(), 2);
}

#[test]
fn session_leaves_nothing_behind() {
    let agent = Agent::start(&[]).unwrap();
    let mut client = agent.client().unwrap();
    let all = json!({"length": limits::MEMORY, "access": 0});
    for _ in 0..2 {
        client.call(Do::Reg, all.clone()).unwrap();
        assert_eq!(refusal(client.call(Do::Reg, json!({"length": 1, "access": 0}))).1, libc::ENOMEM);
        client.call(Do::Reset, Value::Null).unwrap();
    }
    client.call(Do::Reg, all).unwrap();
    let pd = client.call(Do::AllocPd, Value::Null).unwrap()["pd"].clone();
    client.call(Do::CreateSrq, json!({ "pd": pd })).unwrap();
    let (text, errno) = refusal(client.call(Do::Destroy, json!({"kind": "pd", "handle": pd})));
    assert_eq!((text.as_str(), errno), (format!("pd {pd} is still in use").as_str(), libc::EBUSY));
}

/// Runs the checks of one MTU and IP version. The suite `kernel_rxe` runs the others, which use the
/// same code of the agents.
#[test]
fn two_agents_run_every_operation_between_their_cards() {
    let agent = Agent::start(&[]).unwrap();
    let roxe = build::roxe();
    let mut command = Command::new(&roxe);
    command.args(["run", "--"]).arg(&roxe).args(["check-peer", &agent.address, "mtu=1024", "ipv4"]);
    command.env("ROXE_PEER_TOKEN", &agent.token);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("158 passed, 0 failed, 0 not supported"), "{text}");
}
