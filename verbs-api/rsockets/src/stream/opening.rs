//! Connecting, step by step: address, route, request, reply.

use super::endpoint::Endpoint;
use super::open::Open;
use super::settings::Settings;
use crate::errno::{self, os};
use crate::proto::conn::ConnData;
use roxe::cm::{CmEvent, CmEventKind, CmId, ConnParam, IdOption};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// How long the system may look for an address or a path.
const LOOKUP: Duration = Duration::from_secs(8);

/// A connection that is on its way.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(super) id: CmId,
    /// What the connection will live on, once it was asked for.
    endpoint: Option<Endpoint>,
}

impl Opening {
    /// Starts on the way to `addr`.
    pub(crate) fn start(id: CmId, addr: SocketAddr) -> io::Result<Self> {
        id.resolve_addr(None, addr, LOOKUP).map_err(errno::of)?;
        Ok(Self { id, endpoint: None })
    }

    /// Goes on after `event`; returns the connection when it stands.
    ///
    /// # Errors
    /// Why there will be none.
    pub(crate) fn handle(&mut self, event: CmEvent, settings: &Settings) -> io::Result<Option<Open>> {
        match event.kind() {
            CmEventKind::AddrResolved => self.find_route(settings)?,
            CmEventKind::RouteResolved => self.ask(settings)?,
            CmEventKind::AddrChange | CmEventKind::TimewaitExit => {}
            _ => {
                let answer = event.expect(CmEventKind::Established).map_err(|failed| os(failed.errno()))?;
                return self.established(&answer, settings).map(Some);
            }
        }
        Ok(None)
    }

    fn find_route(&self, settings: &Settings) -> io::Result<()> {
        let found = match settings.path {
            Some(path) => self.id.set_option(IdOption::Path(path)),
            None => self.id.resolve_route(LOOKUP),
        };
        found.map_err(errno::of)
    }

    fn ask(&mut self, settings: &Settings) -> io::Result<()> {
        let endpoint = Endpoint::build(&self.id, settings.sizes(), settings.inline)?;
        let param = ConnParam {
            private_data: endpoint.conn_data().encode().to_vec(),
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: true,
            ..ConnParam::default()
        };
        self.id.connect(&param).map_err(errno::of)?;
        self.endpoint = Some(endpoint);
        Ok(())
    }

    fn established(&mut self, event: &CmEvent, settings: &Settings) -> io::Result<Open> {
        let peer = ConnData::decode(event.private_data()).map_err(|_| os(libc::ENOTSUP))?;
        let endpoint = self.endpoint.take().ok_or_else(|| os(libc::EPROTO))?;
        Ok(Open::new(self.id.clone(), endpoint, peer, settings.inline, true))
    }
}
