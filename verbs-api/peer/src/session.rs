//! What one controller has made, and what it can do: a method a command.
//!
//! Objects live in one table (`session/table.rs`); `session/card.rs` tells what the card is,
//! `session/control.rs` makes, changes and destroys objects, `session/data.rs` posts, polls and
//! touches memory, `session/cm.rs` connects. Everything goes when the session does.
//! Touches the verbs of `verbs.rs`, and files of counters.

mod attributes;
mod card;
mod cm;
mod control;
mod data;
mod table;

use crate::protocol::{Args, Command, Refusal, Request, Result, limits};
use crate::verbs::{CmChannel, CmEvent, Context, Pd};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::net::UdpSocket;
use std::rc::Rc;
use std::time::{Duration, Instant};
use table::Table;

/// The objects of one controller.
pub(crate) struct Session {
    context: Rc<Context>,
    port: u8,
    table: Table,
    /// What objects belong to if no domain is named; made when it is needed.
    pd: Option<Rc<Pd>>,
    /// Of librdmacm, opened when it is needed; and events that came while others were waited for.
    cm_channel: Option<Rc<CmChannel>>,
    cm_events: VecDeque<CmEvent>,
    /// What makes this host hear the groups that queue pairs are attached to, by queue pair and
    /// group.
    memberships: BTreeMap<(u64, [u8; 16]), UdpSocket>,
}

impl Session {
    /// Opens the card of this name, or the first one.
    pub(crate) fn open(device: Option<&str>, port: u8) -> Result<Self> {
        Ok(Self {
            context: Context::open(device)?,
            port,
            table: Table::default(),
            pd: None,
            cm_channel: None,
            cm_events: VecDeque::new(),
            memberships: BTreeMap::new(),
        })
    }

    /// Does what the request says. `hello` has been checked and `bye` is obeyed by the server.
    pub(crate) fn execute(&mut self, request: &Request) -> Result<Value> {
        let (args, nothing) = (&request.args, |()| json!({}));
        match request.command {
            Command::Hello => self.hello(),
            Command::Reg => self.reg(args),
            Command::Dereg => self.table.destroy("mr", args.number("mr")?).map(nothing),
            Command::AllocPd => self.alloc_pd(),
            Command::CreateCq => self.create_cq(args),
            Command::CreateSrq => self.create_srq(args),
            Command::OpenXrcd => self.open_xrcd(),
            Command::CreateQp => self.create_qp(args),
            Command::ModifyQp => self.modify_qp(args).map(nothing),
            Command::QueryQp => self.query_qp(args),
            Command::PostSend => self.post_send(args).map(nothing),
            Command::PostRecv => self.post_recv(args).map(nothing),
            Command::Poll => self.poll(args),
            Command::Notify => self.table.cq(args.number("cq")?)?.notify(args.is_set("solicited")?).map(nothing),
            Command::CqEvent => self.cq_event(args),
            Command::Read => self.read(args),
            Command::Write => self.write(args).map(nothing),
            Command::Events => self.events(args),
            Command::CreateAh => self.create_ah(args),
            Command::AllocMw => self.alloc_mw(args),
            Command::BindMw => self.bind_mw(args),
            Command::AttachMcast => self.set_member(args, true).map(nothing),
            Command::DetachMcast => self.set_member(args, false).map(nothing),
            Command::CmListen => self.cm_listen(args),
            Command::CmConnect => self.cm_connect(args),
            Command::CmAccept => self.cm_accept(args).map(nothing),
            Command::CmEstablish => self.cm_establish(args).map(nothing),
            Command::CmReject => self.table.cm(args.number("cm")?)?.reject(&private_data(args)?).map(nothing),
            Command::CmDisconnect => self.table.cm(args.number("cm")?)?.disconnect().map(nothing),
            Command::CmNotify => self.table.cm(args.number("cm")?)?.notify().map(nothing),
            Command::CmEvents => self.cm_events(args),
            Command::Counters => self.counters(),
            Command::Destroy => self.table.destroy(args.text("kind")?, args.number("handle")?).map(nothing),
            Command::Reset => {
                self.reset();
                Ok(json!({}))
            }
            Command::Bye => Ok(json!({})),
        }
    }

    fn reset(&mut self) {
        // Identifiers of requests that nobody has taken go first, as all identifiers do.
        self.cm_events.clear();
        self.memberships.clear();
        self.table.clear();
        // Events that were told and not taken are about identifiers that have gone.
        self.cm_channel = None;
        self.pd = None;
    }

    /// The domain that was named, or the one of the session.
    fn pd(&mut self, args: &Args) -> Result<Rc<Pd>> {
        if let Some(handle) = args.optional("pd")? {
            return self.table.pd(handle);
        }
        if self.pd.is_none() {
            self.pd = Some(Rc::new(Pd::alloc(&self.context)?));
        }
        self.pd.clone().ok_or_else(|| Refusal::invalid("there is no domain"))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.reset();
    }
}

/// When a wait that a request asks for ends.
fn deadline(args: &Args) -> Result<Instant> {
    let wait: u64 = args.or("timeout_ms", 0)?;
    if wait > limits::WAIT_MS {
        return Err(Refusal::invalid(format!("timeout_ms is at most {}", limits::WAIT_MS)));
    }
    Ok(Instant::now() + Duration::from_millis(wait))
}

/// The private data that is sent along; none if nothing is said.
fn private_data(args: &Args) -> Result<Vec<u8>> {
    Ok(args.bytes("hex")?.unwrap_or_default())
}
