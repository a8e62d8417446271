//! Commands that listen, connect and accept through librdmacm, and its events.

use super::{Object, Session, deadline, private_data};
use crate::protocol::{Args, Refusal, Result, limits, names, to_hex};
use crate::verbs::{CmChannel, CmEvent, CmId, Qp};
use roxe_abi::rdma_conn_param;
use serde_json::{Value, json};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

const DEFAULT_BACKLOG: u32 = 16;
/// Time limit for the resolution of an address or a route.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
const INIT: i32 = 1;
const RTR: i32 = 2;
const RTS: i32 = 3;
/// `IBV_QPT_UD`.
const UD: u32 = 4;

impl Session {
    fn cm_channel(&mut self) -> Result<Rc<CmChannel>> {
        if let Some(channel) = &self.cm_channel {
            return Ok(Rc::clone(channel));
        }
        let channel = CmChannel::open()?;
        self.cm_channel = Some(Rc::clone(&channel));
        Ok(channel)
    }

    fn new_cm(&mut self, args: &Args) -> Result<CmId> {
        self.table.check_room(0)?;
        let space = if args.has("space") { args.named("space", names::PORT_SPACES)? } else { names::PORT_SPACES[0].1 };
        CmId::create(&self.cm_channel()?, space)
    }

    pub(super) fn cm_listen(&mut self, args: &Args) -> Result<Value> {
        let address = address(args, "gid", args.or("port", 0)?)?.ok_or_else(|| Refusal::invalid("gid is missing"))?;
        let (id, backlog) = (self.new_cm(args)?, args.or("backlog", DEFAULT_BACKLOG)?);
        let port = id.listen(address, backlog)?;
        Ok(json!({"cm": self.table.insert(Object::Cm(Rc::new(id))), "port": port}))
    }

    pub(super) fn cm_connect(&mut self, args: &Args) -> Result<Value> {
        let to = address(args, "gid", args.number("port")?)?.ok_or_else(|| Refusal::invalid("gid is missing"))?;
        let qp = self.table.qp(args.number("qp")?)?;
        let id = self.new_cm(args)?;
        id.resolve_addr(address(args, "from", 0)?, to)?;
        self.wait_resolved(&id, "ADDR_RESOLVED")?;
        id.resolve_route()?;
        self.wait_resolved(&id, "ROUTE_RESOLVED")?;
        if qp.kind() != UD {
            id.modify_qp(&qp, INIT)?;
        }
        id.connect(&private_data(args)?, conn_param(args, &qp)?)?;
        Ok(json!({"cm": self.table.insert(Object::Cm(Rc::new(id)))}))
    }

    /// Waits for the event `wanted` of a new identifier. Queues events of other identifiers.
    fn wait_resolved(&mut self, id: &CmId, wanted: &str) -> Result<()> {
        let (channel, until) = (self.cm_channel()?, Instant::now() + RESOLVE_TIMEOUT);
        while Instant::now() < until {
            let Some(event) = channel.next_event(until)? else { continue };
            if event.id_address != id.raw.addr() {
                self.cm_events.push_back(event);
                continue;
            }
            let name = names::name(names::CM_EVENTS, event.event_type);
            if name == wanted {
                return Ok(());
            }
            let errno = event.status.saturating_abs().max(1);
            return Err(Refusal { text: format!("the event {name} arrived instead of {wanted}"), errno });
        }
        Err(Refusal { text: format!("no {wanted}"), errno: libc::ETIMEDOUT })
    }

    pub(super) fn cm_accept(&mut self, args: &Args) -> Result<()> {
        let (id, qp) = (self.table.cm(args.number("cm")?)?, self.table.qp(args.number("qp")?)?);
        let last = if args.has("to") { args.named("to", names::STATES)?.cast_signed() } else { RTS };
        if qp.kind() != UD {
            for state in [INIT, RTR, RTS].into_iter().filter(|state| *state <= last) {
                id.modify_qp(&qp, state)?;
            }
        }
        id.accept(&private_data(args)?, conn_param(args, &qp)?)
    }

    pub(super) fn cm_establish(&mut self, args: &Args) -> Result<()> {
        let (id, qp) = (self.table.cm(args.number("cm")?)?, self.table.qp(args.number("qp")?)?);
        // Repeats INIT, as librdmacm does: only the response has the access rights that the peer
        // needs.
        for state in [INIT, RTR, RTS] {
            id.modify_qp(&qp, state)?;
        }
        id.establish()
    }

    pub(super) fn cm_events(&mut self, args: &Args) -> Result<Value> {
        let (channel, mut until) = (self.cm_channel()?, deadline(args)?);
        let mut events = Vec::new();
        while events.len() < limits::RESULTS {
            let next = match self.cm_events.pop_front() {
                Some(event) => Some(event),
                None => channel.next_event(until)?,
            };
            let Some(event) = next else { break };
            // Only the first event is awaited.
            until = Instant::now();
            events.push(self.cm_event(event)?);
        }
        Ok(json!({ "events": events }))
    }

    /// Returns an event as JSON. The identifier of a request becomes an object of the session.
    fn cm_event(&mut self, event: CmEvent) -> Result<Value> {
        let cm_or_listener = self.table.handle_at("cm", event.id_address);
        let (cm, listener) = match event.new_id {
            Some(id) => {
                self.table.check_room(0)?;
                (Some(self.table.insert(Object::Cm(Rc::new(id)))), cm_or_listener)
            }
            None => (cm_or_listener, None),
        };
        let [responder_resources, initiator_depth] = event.depths;
        Ok(json!({
            "type": names::name(names::CM_EVENTS, event.event_type), "status": event.status, "cm": cm,
            "listener": listener, "hex": to_hex(&event.private_data), "qpn": event.qpn, "qkey": event.qkey,
            "responder_resources": responder_resources, "initiator_depth": initiator_depth,
        }))
    }
}

/// Returns the GID in the argument `name` as an address with a port.
fn address(args: &Args, name: &str, port: u16) -> Result<Option<SocketAddr>> {
    let gid = args.gid(name)?;
    Ok(gid.map(|gid| SocketAddr::new(IpAddr::V6(Ipv6Addr::from(gid)).to_canonical(), port)))
}

/// Returns the connection parameters of a request or response, without private data.
fn conn_param(args: &Args, qp: &Qp) -> Result<rdma_conn_param> {
    Ok(rdma_conn_param {
        qp_num: qp.number(),
        srq: u8::from(qp.has_shared_receives()),
        responder_resources: args.or("responder_resources", 1)?,
        initiator_depth: args.or("initiator_depth", 1)?,
        retry_count: args.or("retry_cnt", 7)?,
        rnr_retry_count: args.or("rnr_retry", 7)?,
        ..rdma_conn_param::ZERO
    })
}
