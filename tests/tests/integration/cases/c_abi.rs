//! The agent of the C configurations: translates the lines of a script into requests to `roxe
//! peer`, which calls the functions of libibverbs.

use super::agent::{CLOSED_LEN, OPEN_LEN, QKEY, TIME_LIMIT, pattern};
use super::line::Line;
use roxe_peer::client::{Client, ClientError};
use roxe_peer::protocol::{Command, from_hex, names, to_hex};
use roxe_tests::agent::Agent;
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// A process with roxe's libibverbs, and the objects of its ends.
pub(crate) struct CAgent {
    // Declared before `_agent`, so that the session ends before the process.
    client: Client,
    ends: HashMap<String, End>,
    /// Asynchronous events that no line has requested yet.
    events: VecDeque<Value>,
    _agent: Agent,
}

/// One end of a script: a protection domain with memory and queues.
struct End {
    pd: u64,
    sends: u64,
    receives: u64,
    domain: u64,
    open: Value,
    closed: Value,
    qps: HashMap<String, Qp>,
    srqs: HashMap<String, u64>,
    windows: HashMap<String, Window>,
}

struct Window {
    handle: u64,
    is_type_2: bool,
    /// Current key.
    key: u32,
}

struct Qp {
    handle: u64,
    service: &'static str,
    rtr: Value,
    rts: Value,
}

type Answer = Result<String, ClientError>;

fn number(answer: &Value, name: &str) -> u64 {
    answer[name].as_u64().unwrap_or_else(|| panic!("no number {name} in {answer}"))
}

impl CAgent {
    pub(crate) fn start(envs: &[(&str, &str)]) -> Result<Self, String> {
        let agent = Agent::start(envs).map_err(|error| error.to_string())?;
        let client = agent.client().map_err(|error| error.to_string())?;
        Ok(Self { client, ends: HashMap::new(), events: VecDeque::new(), _agent: agent })
    }

    /// Runs one line and returns the answer: `refused` and the call if a call fails.
    pub(crate) fn ask(&mut self, text: &str) -> Result<String, String> {
        let line = Line::parse(text);
        let mut end = match self.ends.remove(line.end) {
            Some(end) => end,
            None => End::open(&mut self.client).map_err(|error| error.to_string())?,
        };
        let answer = match line.verb {
            "event" => self.event(&end),
            _ => end.execute(&mut self.client, &line),
        };
        self.ends.insert(line.end.to_owned(), end);
        match answer {
            Err(ClientError::Refused(refusal)) => Ok(format!("refused {refusal}")),
            answer => answer.map_err(|error| error.to_string()),
        }
    }

    /// Waits for the next asynchronous event of an object of `end`.
    fn event(&mut self, end: &End) -> Answer {
        let start = Instant::now();
        loop {
            let named = |event: &Value| {
                let qps = end.qps.iter().map(|(name, qp)| ("qp", name, qp.handle));
                let mut all = qps.chain(end.srqs.iter().map(|(name, srq)| ("srq", name, *srq)));
                all.find(|(kind, _, handle)| event[*kind] == *handle).map(|(_, name, _)| name.clone())
            };
            let found = self.events.iter().enumerate().find_map(|(at, event)| Some((at, named(event)?)));
            if let Some((at, name)) = found {
                let event = self.events.remove(at).unwrap_or_default();
                let kind = names::number(names::EVENTS, event["type"].as_str().unwrap_or_default());
                return Ok(format!("{} {name}", kind.unwrap_or(u32::MAX)));
            }
            if start.elapsed() > TIME_LIMIT {
                return Ok("none".into());
            }
            let mut answer = self.client.call(Command::Events, json!({"timeout_ms": 100}))?;
            self.events.extend(answer["events"].as_array_mut().map_or_else(Vec::new, std::mem::take));
        }
    }
}

impl End {
    fn open(client: &mut Client) -> Result<Self, ClientError> {
        let pd = number(&client.call(Command::AllocPd, Value::Null)?, "pd");
        let mut reg = |length: usize, access: &str| {
            client.call(Command::Reg, json!({"pd": pd, "length": length, "access": access}))
        };
        let open = reg(OPEN_LEN, "LOCAL_WRITE|REMOTE_WRITE|REMOTE_READ|REMOTE_ATOMIC")?;
        let closed = reg(CLOSED_LEN, "LOCAL_WRITE|MW_BIND")?;
        let sends = number(&client.call(Command::CreateCq, json!({"cqe": 256}))?, "cq");
        let receives = number(&client.call(Command::CreateCq, json!({"cqe": 256}))?, "cq");
        let domain = number(&client.call(Command::OpenXrcd, Value::Null)?, "xrcd");
        let (qps, srqs, windows) = (HashMap::new(), HashMap::new(), HashMap::new());
        Ok(Self { pd, sends, receives, domain, open, closed, qps, srqs, windows })
    }

    fn execute(&mut self, client: &mut Client, line: &Line<'_>) -> Answer {
        let name = line.name(0);
        let (command, arguments) = match line.verb {
            "qp" => return self.create_qp(client, line),
            "connect" => return self.connect(client, line),
            "srq" | "xsrq" => {
                let mut srq = json!({"pd": self.pd, "max_wr": 16, "max_sge": 4});
                if line.verb == "xsrq" {
                    (srq["xrcd"], srq["cq"]) = (self.domain.into(), self.receives.into());
                }
                let srq = client.call(Command::CreateSrq, srq)?;
                self.srqs.insert(name.to_owned(), number(&srq, "srq"));
                return Ok(srq["srqn"].as_u64().map_or_else(String::new, |number| number.to_string()));
            }
            "limit" => (Command::ModifySrq, json!({"srq": self.srqs[name], "limit": line.number(1)})),
            "memory" => return Ok(format!("{} {}", self.open["addr"], self.open["rkey"])),
            "window" => {
                let window = client.call(Command::AllocMw, json!({"pd": self.pd, "type": line.number(1)}))?;
                let (handle, key) = (number(&window, "mw"), number(&window, "rkey") as u32);
                self.windows.insert(name.to_owned(), Window { handle, is_type_2: line.number(1) == 2, key });
                return Ok(String::new());
            }
            "recv" => {
                let mut receive = json!({"wr_id": line.number(1), "sge": self.sges(line)});
                match self.srqs.get(name) {
                    Some(srq) => receive["srq"] = (*srq).into(),
                    None => receive["qp"] = self.qps[name].handle.into(),
                }
                (Command::PostRecv, receive)
            }
            "send" => return self.send(client, line),
            "sent" => return next(client, self.sends),
            "got" => return next(client, self.receives),
            "left" => {
                return Ok((poll(client, self.sends, 16)?.len() + poll(client, self.receives, 16)?.len()).to_string());
            }
            "arm" => {
                let cq = if name == "sends" { self.sends } else { self.receives };
                (Command::Notify, json!({"cq": cq, "solicited": line.has("solicited")}))
            }
            "woken" => return self.completion_event(client),
            "state" => {
                let state = client.call(Command::QueryQp, json!({"qp": self.qps[name].handle}))?["state"].take();
                let state = names::number(names::STATES, state.as_str().unwrap_or_default());
                return Ok(state.unwrap_or(u32::MAX).to_string());
            }
            "modify" => {
                let event = line.has("notify").then_some(true);
                let (qp, to) = (self.qps[name].handle, line.name(1).to_uppercase());
                (Command::ModifyQp, json!({"qp": qp, "to": to, "exact": true, "sqd_event": event}))
            }
            "attach" => (Command::AttachMcast, json!({"qp": self.qps[name].handle, "gid": line.name(1)})),
            "detach" => (Command::DetachMcast, json!({"qp": self.qps[name].handle, "gid": line.name(1)})),
            "destroy" => {
                let (kind, handle) = match self.qps.remove(name) {
                    Some(qp) => ("qp", qp.handle),
                    None => ("srq", self.srqs.remove(name).unwrap_or_default()),
                };
                (Command::Destroy, json!({"kind": kind, "handle": handle}))
            }
            "fill" => {
                let ((offset, len), seed) = (line.part(0), line.number(0));
                let (region, offset) = self.region(offset);
                (Command::Write, json!({"mr": region["mr"], "offset": offset, "hex": to_hex(&pattern(len, seed))}))
            }
            "bytes" => return Ok(to_hex(&self.read(client, line.part(0))?)),
            other => panic!("there is no verb {other}"),
        };
        client.call(command, arguments).map(|_| String::new())
    }

    /// Returns the region of a part of the memory, and the part's offset in the region.
    fn region(&self, offset: usize) -> (&Value, usize) {
        offset.checked_sub(OPEN_LEN).map_or((&self.open, offset), |offset| (&self.closed, offset))
    }

    fn read(&self, client: &mut Client, (offset, len): (usize, usize)) -> Result<Vec<u8>, ClientError> {
        let (region, offset) = self.region(offset);
        let answer = client.call(Command::Read, json!({"mr": region["mr"], "offset": offset, "length": len}))?;
        Ok(answer["hex"].as_str().and_then(from_hex).unwrap_or_default())
    }

    fn sges(&self, line: &Line<'_>) -> Value {
        let entries = line.parts.iter().map(|part| {
            let (region, offset) = self.region(part.offset);
            let key = number(region, "lkey") ^ u64::from(part.bad_key);
            json!({"mr": region["mr"], "offset": offset, "length": part.len, "lkey": key})
        });
        entries.collect()
    }

    fn create_qp(&mut self, client: &mut Client, line: &Line<'_>) -> Answer {
        let service = match line.name(1) {
            "rc" => "RC",
            "uc" => "UC",
            "ud" => "UD",
            "xrc" => "XRC_SEND",
            _ => "XRC_RECV",
        };
        let srq = line.text("srq").map(|name| self.srqs[name]);
        let domain = (service == "XRC_RECV").then_some(self.domain);
        let created = client.call(
            Command::CreateQp,
            json!({"type": service, "pd": self.pd, "cq": self.sends, "recv_cq": self.receives, "srq": srq,
                   "xrcd": domain, "max_send_wr": 64, "max_recv_wr": 64, "max_sge": 4, "max_inline": 64,
                   "sig_all": line.has("all_signaled")}),
        )?;
        let (handle, qpn) = (number(&created, "qp"), number(&created, "qpn"));
        let psn = 1000 + handle;
        let set = |key, default: u32| line.value(key).unwrap_or(default);
        let is_reliable = !matches!(service, "UC" | "UD");
        // Null members are not sent.
        let only_if = |is_set: bool, value: u32| is_set.then_some(value);
        let init = match service {
            "UD" => json!({"qp": handle, "to": "INIT", "qkey": QKEY.0}),
            _ => json!({"qp": handle, "to": "INIT", "access": set("access", 0xe)}),
        };
        let rtr = json!({"qp": handle, "to": "RTR", "path_mtu": only_if(service != "UD", set("mtu", 1024)),
                         "max_dest_rd_atomic": only_if(is_reliable, 4), "min_rnr_timer": only_if(is_reliable, 1)});
        let rts = json!({"qp": handle, "to": "RTS", "sq_psn": psn, "timeout": only_if(is_reliable, set("timeout", 16)),
                         "retry_cnt": only_if(is_reliable, set("retry", 7)), "rnr_retry": only_if(is_reliable, set("rnr", 7)),
                         "max_rd_atomic": only_if(is_reliable, 4)});
        client.call(Command::ModifyQp, init)?;
        self.qps.insert(line.name(0).to_owned(), Qp { handle, service, rtr, rts });
        Ok(format!("{qpn} {psn}"))
    }

    fn connect(&self, client: &mut Client, line: &Line<'_>) -> Answer {
        let qp = &self.qps[line.name(0)];
        let mut rtr = qp.rtr.clone();
        if qp.service != "UD" {
            (rtr["dest_qpn"], rtr["rq_psn"]) = (line.number(1).into(), line.number(2).into());
            (rtr["dgid"], rtr["sgid_index"]) = (client.card()["gids"][0]["gid"].clone(), 0.into());
        }
        client.call(Command::ModifyQp, rtr)?;
        client.call(Command::ModifyQp, qp.rts.clone()).map(|_| String::new())
    }

    fn send(&mut self, client: &mut Client, line: &Line<'_>) -> Answer {
        let qp = self.qps[line.name(0)].handle;
        let flags: Vec<_> =
            [(!line.has("unsignaled"), "SIGNALED"), (line.has("fence"), "FENCE"), (line.has("solicited"), "SOLICITED")]
                .into_iter()
                .filter_map(|(is_set, name)| is_set.then_some(name))
                .collect();
        let (wr_id, operation) = (line.number(1), line.name(2));
        if operation == "bind" || operation == "close" {
            return self.bind(client, line, json!({"qp": qp, "wr_id": wr_id, "flags": flags}));
        }
        let opcode = match (operation, line.text("imm"), line.text("closes")) {
            ("send", Some(_), _) => "SEND_WITH_IMM",
            ("send", _, Some(_)) => "SEND_WITH_INV",
            ("send", ..) => "SEND",
            ("write", Some(_), _) => "RDMA_WRITE_WITH_IMM",
            ("write", ..) => "RDMA_WRITE",
            ("read", ..) => "RDMA_READ",
            ("add", ..) => "ATOMIC_FETCH_AND_ADD",
            ("swap", ..) => "ATOMIC_CMP_AND_SWP",
            ("invalidate", ..) => "LOCAL_INV",
            other => panic!("there is no operation {other:?}"),
        };
        let key = line.text("key").filter(|_| operation == "invalidate").or_else(|| line.text("closes"));
        let compare_add = if operation == "swap" { line.text("compare") } else { line.text("add") };
        let mut request = json!({
            "qp": qp, "wr_id": wr_id, "opcode": opcode, "flags": flags, "imm": line.text("imm"),
            "invalidate_rkey": key, "remote_addr": line.text("at"), "rkey": line.text("key"),
            "compare_add": compare_add, "swap": line.text("swap"), "remote_srqn": line.text("srqn"),
        });
        if line.has("inline") {
            let parts = line.parts.iter().map(|part| self.read(client, (part.offset, part.len)));
            request["inline_data"] = to_hex(&parts.collect::<Result<Vec<_>, _>>()?.concat()).into();
        } else {
            request["sge"] = self.sges(line);
        }
        let Some(to) = line.text("to") else {
            return client.call(Command::PostSend, request).map(|_| String::new());
        };
        let dgid = line.text("group").map_or_else(|| client.card()["gids"][0]["gid"].clone(), Into::into);
        let ah = client.call(Command::CreateAh, json!({"pd": self.pd, "dgid": dgid, "sgid_index": 0}))?["ah"].take();
        (request["ah"], request["remote_qpn"]) = (ah.clone(), to.into());
        request["remote_qkey"] = line.value("qkey").unwrap_or(QKEY.0).into();
        let posted = client.call(Command::PostSend, request);
        client.call(Command::Destroy, json!({"kind": "ah", "handle": ah}))?;
        posted.map(|_| String::new())
    }

    /// Binds a window to the first part of the line, or closes it: a window of type 1 with a bind
    /// of 0 bytes, a window of type 2 with an invalidation.
    fn bind(&mut self, client: &mut Client, line: &Line<'_>, mut request: Value) -> Answer {
        let Some(window) = line.text("window").and_then(|name| self.windows.get(name)) else {
            panic!("the line has no window=NAME")
        };
        let is_close = line.name(2) == "close";
        if is_close && window.is_type_2 {
            (request["opcode"], request["invalidate_rkey"]) = ("LOCAL_INV".into(), window.key.into());
            return client.call(Command::PostSend, request).map(|_| String::new());
        }
        let (offset, len) = if is_close { (OPEN_LEN, 0) } else { line.part(0) };
        let access = if is_close { 0 } else { line.value("access").unwrap_or(0xe) };
        let (region, offset) = self.region(offset);
        (request["mw"], request["mr"]) = (window.handle.into(), region["mr"].clone());
        (request["offset"], request["length"], request["access"]) = (offset.into(), len.into(), access.into());
        let addr = number(region, "addr") + offset as u64;
        let key = number(&client.call(Command::BindMw, request)?, "rkey") as u32;
        if let Some(window) = line.text("window").and_then(|name| self.windows.get_mut(name)) {
            window.key = key;
        }
        let is_zero_based = access & names::number(names::ACCESS, "ZERO_BASED").unwrap_or(0) != 0;
        Ok(if is_close { String::new() } else { format!("{} {key}", if is_zero_based { 0 } else { addr }) })
    }

    /// Waits for the event of one of the completion queues.
    fn completion_event(&self, client: &mut Client) -> Answer {
        let start = Instant::now();
        while start.elapsed() < TIME_LIMIT {
            for (name, cq) in [("sends", self.sends), ("receives", self.receives)] {
                if client.call(Command::CqEvent, json!({"cq": cq, "timeout_ms": 1}))?["fired"] == true {
                    return Ok(name.into());
                }
            }
        }
        Ok("none".into())
    }
}

/// Polls without waiting, because a wait in the agent would arm the queue.
fn poll(client: &mut Client, cq: u64, max: usize) -> Result<Vec<Value>, ClientError> {
    let mut answer = client.call(Command::Poll, json!({"cq": cq, "max": max, "min": 0}))?;
    Ok(answer["completions"].as_array_mut().map_or_else(Vec::new, std::mem::take))
}

/// Returns the next completion: wr_id, status, opcode, byte_len, immediate data or invalidated key,
/// QP numbers of both ends, vendor error.
fn next(client: &mut Client, cq: u64) -> Answer {
    let start = Instant::now();
    while start.elapsed() < TIME_LIMIT {
        let Some(completion) = poll(client, cq, 1)?.pop() else { continue };
        let named = |name: &str, table| names::number(table, completion[name].as_str().unwrap_or_default());
        let value = |name: &str| completion[name].as_u64();
        let values = [
            value("wr_id"),
            named("status", names::WC_STATUSES).map(u64::from),
            named("opcode", names::WC_OPCODES).map(u64::from),
            value("byte_len"),
            value("imm").or_else(|| value("invalidated_rkey")),
            value("qpn"),
            value("src_qp"),
            value("vendor_err"),
        ];
        return Ok(values.map(|value| value.unwrap_or_default().to_string()).join(" "));
    }
    Ok("none".into())
}
