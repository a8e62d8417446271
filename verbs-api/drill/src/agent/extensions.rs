//! What an agent does besides the plain verbs: connections by librdmacm, XRC, windows, groups.

use super::AgentCard;
use super::answers::{connection_event, number};
use crate::target::{Answer, Bound, ConnectionEvent, Extensions, Handle, Refused, Terms};
use roxe_peer::protocol::{Command, to_hex};
use roxe_wire::Gid;
use serde_json::{Value, json};

/// A request about an identifier, with the terms of a connection.
fn with_terms(mut arguments: Value, terms: &Terms) -> Value {
    let [serves, issues] = terms.depths;
    arguments["hex"] = to_hex(&terms.private_data).into();
    (arguments["responder_resources"], arguments["initiator_depth"]) = (serves.into(), issues.into());
    (arguments["retry_cnt"], arguments["rnr_retry"]) = (terms.retry_cnt.into(), terms.rnr_retry.into());
    arguments
}

impl AgentCard {
    /// The address of the card in the family of the current case.
    fn address(&self) -> Answer<Gid> {
        let card = self.cards.iter().find(|card| card.address.is_ipv4() == self.near.is_ipv4());
        card.map(|card| card.address).ok_or_else(|| Refused::broken("the card has no address"))
    }
}

impl Extensions for AgentCard {
    fn listen(&mut self, space: &str) -> Answer<(Handle, u16)> {
        let arguments = json!({"gid": self.address()?.to_string(), "space": space});
        let answer = self.call(Command::CmListen, arguments)?;
        Ok((number(&answer, "cm")?, number(&answer, "port")? as u16))
    }

    fn connect(&mut self, space: &str, port: u16, qp: Handle, terms: &Terms) -> Answer<Handle> {
        let (from, to) = (self.address()?, self.near);
        let arguments =
            json!({"gid": to.to_string(), "from": from.to_string(), "port": port, "space": space, "qp": qp});
        self.make(Command::CmConnect, with_terms(arguments, terms), "cm")
    }

    fn accept(&mut self, id: Handle, qp: Handle, state: &str, terms: &Terms) -> Answer<()> {
        self.call(Command::CmAccept, with_terms(json!({"cm": id, "qp": qp, "to": state}), terms)).map(|_| ())
    }

    fn establish(&mut self, id: Handle, qp: Handle) -> Answer<()> {
        self.call(Command::CmEstablish, json!({"cm": id, "qp": qp})).map(|_| ())
    }

    fn reject(&mut self, id: Handle, private_data: &[u8]) -> Answer<()> {
        self.call(Command::CmReject, json!({"cm": id, "hex": to_hex(private_data)})).map(|_| ())
    }

    fn disconnect(&mut self, id: Handle) -> Answer<()> {
        self.call(Command::CmDisconnect, json!({"cm": id})).map(|_| ())
    }

    fn notify(&mut self, id: Handle) -> Answer<()> {
        self.call(Command::CmNotify, json!({"cm": id})).map(|_| ())
    }

    fn destroy_id(&mut self, id: Handle) -> Answer<()> {
        self.destroy("cm", id)
    }

    fn connection_events(&mut self) -> Answer<Vec<ConnectionEvent>> {
        let answer = self.call(Command::CmEvents, Value::Null)?;
        Ok(answer["events"].as_array().into_iter().flatten().map(connection_event).collect())
    }

    fn open_xrcd(&mut self) -> Answer<Handle> {
        self.make(Command::OpenXrcd, Value::Null, "xrcd")
    }

    fn create_xrc_srq(&mut self, pd: Option<Handle>, xrcd: Handle, cq: Handle) -> Answer<(Handle, u32)> {
        let arguments = json!({"pd": pd, "xrcd": xrcd, "cq": cq, "max_wr": 64, "max_sge": 4});
        let answer = self.call(Command::CreateSrq, arguments)?;
        Ok((number(&answer, "srq")?, number(&answer, "srqn")? as u32))
    }

    fn alloc_window(&mut self, kind: u32, pd: Option<Handle>) -> Answer<(Handle, u32)> {
        let answer = self.call(Command::AllocMw, json!({"type": kind, "pd": pd}))?;
        Ok((number(&answer, "mw")?, number(&answer, "rkey")? as u32))
    }

    fn bind_window(&mut self, qp: Handle, window: Handle, mr: Handle, bound: Bound) -> Answer<u32> {
        let Bound { at, length, access, wr_id } = bound;
        let arguments = json!({
            "qp": qp, "mw": window, "mr": mr, "offset": at, "length": length, "access": access, "wr_id": wr_id,
        });
        Ok(number(&self.call(Command::BindMw, arguments)?, "rkey")? as u32)
    }

    fn set_member(&mut self, qp: Handle, group: Gid, joins: bool) -> Answer<()> {
        let command = if joins { Command::AttachMcast } else { Command::DetachMcast };
        self.call(command, json!({"qp": qp, "gid": group.to_string()})).map(|_| ())
    }
}
