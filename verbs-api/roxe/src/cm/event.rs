//! Events of connection management.

use crate::cm::{CmEventKind, CmId, ConnParam, EventChannel, UdParam};
use crate::{AddressHandle, ArgumentError, Error, FailedConnection, ObjectId, ProtectionDomain, Qkey, Qpn};
use roxe_provider::cm;

impl EventChannel {
    /// Waits for the next event. If the descriptor was made non-blocking, an error for which
    /// [`Error::is_would_block`] holds means that there is none.
    ///
    /// # Errors
    /// [`Error::Environment`] when the wait fails, also when a signal interrupts it.
    pub fn next_event(&self) -> Result<CmEvent, Error> {
        Ok(CmEvent::new(self.0.next()?))
    }

    /// The oldest event, if there is one; never waits.
    pub fn try_next(&self) -> Option<CmEvent> {
        self.0.try_next().map(CmEvent::new)
    }
}

/// Something happened to a [`CmId`].
#[derive(Debug)]
pub struct CmEvent {
    kind: CmEventKind,
    status: i32,
    id: ObjectId,
    request: Option<CmId>,
    data: cm::EventData,
}

impl CmEvent {
    pub(crate) fn new(event: cm::Event) -> Self {
        let cm::Event { kind, status, id, listener, data, .. } = event;
        let about = CmId::identity(listener.as_ref().unwrap_or(&id));
        Self { kind, status, id: about, request: listener.is_some().then(|| CmId::own(id)), data }
    }

    /// The kind of the event.
    pub const fn kind(&self) -> CmEventKind {
        self.kind
    }

    /// The [`CmId::id`] of the id whose verb completed, whose peer acted, or that listens.
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// 0; a negative errno; or the number that the peer gave as the reason, of
    /// [`Rejected`](CmEventKind::Rejected) and of [`Unreachable`](CmEventKind::Unreachable) for
    /// datagrams.
    pub const fn status(&self) -> i32 {
        self.status
    }

    /// The new id of a [`ConnectRequest`](CmEventKind::ConnectRequest), to accept or to reject;
    /// once. Dropping it, or an event that still has it, rejects the request.
    pub const fn take_request(&mut self) -> Option<CmId> {
        self.request.take()
    }

    /// Private data of the peer, padded with zeros to the size of the message, as the wire has no
    /// length.
    pub fn private_data(&self) -> &[u8] {
        match &self.data {
            cm::EventData::Conn(param) => &param.private_data,
            cm::EventData::Ud(param) => &param.private_data,
            cm::EventData::Group { .. } | cm::EventData::Arg(_) | cm::EventData::None => &[],
        }
    }

    /// The peer's terms of a connection, as seen from this side: of a request, the most that
    /// [`CmId::accept`] may say.
    pub const fn param(&self) -> Option<&ConnParam> {
        match &self.data {
            cm::EventData::Conn(param) => Some(param),
            _ => None,
        }
    }

    /// Where datagrams to the peer, or to the group, go.
    pub const fn ud_param(&self) -> Option<&UdParam> {
        match &self.data {
            cm::EventData::Ud(param) | cm::EventData::Group { ud: param, .. } => Some(param),
            _ => None,
        }
    }

    /// [`ud_param`](Self::ud_param) made into what a work request needs.
    ///
    /// # Errors
    /// [`Error::Argument`] if the event tells no such thing, or `pd` is of another device.
    pub fn ud_peer(&self, pd: &ProtectionDomain) -> Result<UdPeer, Error> {
        let param =
            self.ud_param().ok_or(ArgumentError::NotThisEvent { kind: self.kind, lacks: "address of datagrams" })?;
        Ok(UdPeer { ah: pd.create_ah_of(&param.ah_attr)?, qpn: Qpn::new(param.qp_num), qkey: Qkey(param.qkey) })
    }

    /// The event itself if it tells a success or what a peer did, or the failure in words.
    ///
    /// # Errors
    /// [`Error::Peer`].
    pub fn check(self) -> Result<Self, Error> {
        use CmEventKind::{AddrError, ConnectError, DeviceRemoval, MulticastError, Rejected, RouteError, Unreachable};
        match self.kind {
            AddrError | RouteError | ConnectError | Unreachable | Rejected | DeviceRemoval | MulticastError => {
                Err(self.failure())
            }
            _ => Ok(self),
        }
    }

    /// The event itself if it is of this kind.
    ///
    /// # Errors
    /// [`Error::Peer`]; its text says how it went instead.
    pub fn expect(self, kind: CmEventKind) -> Result<Self, Error> {
        if self.kind == kind { Ok(self) } else { Err(self.failure()) }
    }

    fn failure(&self) -> Error {
        FailedConnection { kind: self.kind, status: self.status, private_data: self.private_data().to_vec() }.into()
    }
}

/// Where datagrams go, for [`WorkRequest::to`](crate::WorkRequest::to).
#[derive(Clone, Copy, Debug)]
pub struct UdPeer {
    /// The address.
    pub ah: AddressHandle,
    /// The queue pair there.
    pub qpn: Qpn,
    /// Its key.
    pub qkey: Qkey,
}
