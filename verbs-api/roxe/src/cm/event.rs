//! Events of connection management.

use crate::cm::{CmEventKind, CmId, ConnParam, EventChannel, UdParam};
use crate::{AddressHandle, ArgumentError, Error, FailedConnection, ObjectId, ProtectionDomain, Qkey, Qpn};
use roxe_provider::cm;

impl EventChannel {
    /// Waits for the next event.
    ///
    /// # Errors
    /// [`Error::NotYet`] if a signal interrupts the wait or, with the descriptor in non-blocking
    /// mode, if there is no event ([`Error::is_would_block`]).
    pub fn next_event(&self) -> Result<CmEvent, Error> {
        Ok(CmEvent::new(self.0.next()?))
    }

    /// Returns the oldest event; `None` if there is none. Never waits.
    pub fn try_next(&self) -> Option<CmEvent> {
        self.0.try_next().map(CmEvent::new)
    }
}

/// An event of a [`CmId`].
#[derive(Debug)]
pub struct CmEvent {
    kind: CmEventKind,
    /// 0, a negative errno, or the peer's reason code.
    status: i32,
    id: ObjectId,
    /// New id of a connection request; `None` once it is taken.
    request: Option<CmId>,
    data: cm::EventData,
}

impl CmEvent {
    pub(crate) fn new(event: cm::Event) -> Self {
        let cm::Event { kind, status, id, listener, data, .. } = event;
        let about = CmId::identity(listener.as_ref().unwrap_or(&id));
        Self { kind, status, id: about, request: listener.is_some().then(|| CmId::own(id)), data }
    }

    /// Returns the kind of the event.
    pub const fn kind(&self) -> CmEventKind {
        self.kind
    }

    /// Returns the [`CmId::id`] of the id whose verb completed, whose peer acted, or that received
    /// a request.
    pub const fn id(&self) -> ObjectId {
        self.id
    }

    /// Returns 0, a negative errno, or the peer's reason code. [`Rejected`](CmEventKind::Rejected)
    /// and, for datagrams, [`Unreachable`](CmEventKind::Unreachable) have a reason code. So has
    /// [`RouteError`](CmEventKind::RouteError) if the peer refuses an alternate path.
    pub const fn status(&self) -> i32 {
        self.status
    }

    /// Takes the new id of a [`ConnectRequest`](CmEventKind::ConnectRequest), to accept or reject
    /// the request; `None` on later calls. Dropping the id, or an event that still has it, rejects
    /// the request.
    pub const fn take_request(&mut self) -> Option<CmId> {
        self.request.take()
    }

    /// Returns the private data of the peer. It is padded with zeros to the size of its field,
    /// because messages do not carry its length.
    pub fn private_data(&self) -> &[u8] {
        match &self.data {
            cm::EventData::Conn(param) => &param.private_data,
            cm::EventData::Ud(param) => &param.private_data,
            cm::EventData::Group { .. } | cm::EventData::Arg(_) | cm::EventData::None => &[],
        }
    }

    /// Returns the peer's connection parameters, from the view of this side; `None` for an event
    /// without them. Those of a request are the maximum for [`CmId::accept`].
    pub const fn param(&self) -> Option<&ConnParam> {
        match &self.data {
            cm::EventData::Conn(param) => Some(param),
            _ => None,
        }
    }

    /// Returns the destination of datagrams to the peer (`Established`) or the multicast group
    /// (`MulticastJoin`); `None` for an event without one. In a request for a datagram service
    /// (`ConnectRequest`) it carries private data only, and all numbers are 0.
    pub const fn ud_param(&self) -> Option<&UdParam> {
        match &self.data {
            cm::EventData::Ud(param) | cm::EventData::Group { ud: param, .. } => Some(param),
            _ => None,
        }
    }

    /// Returns [`ud_param`](Self::ud_param) as the destination of a work request.
    ///
    /// # Errors
    /// [`Error::Argument`] if the event has none or is a request, or if the device of `pd` has no
    /// address of the peer's family at the GID index of the id. `pd` must be of the id's device.
    /// This is not checked: another device with such an address would send from it.
    pub fn ud_peer(&self, pd: &ProtectionDomain) -> Result<UdPeer, Error> {
        let param =
            self.ud_param().ok_or(ArgumentError::MissingValue { kind: self.kind, value: "address of datagrams" })?;
        Ok(UdPeer { ah: pd.create_ah_from(&param.ah_attr)?, qpn: Qpn::new(param.qp_num), qkey: Qkey(param.qkey) })
    }

    /// Returns the event itself, unless it reports a failure.
    ///
    /// # Errors
    /// [`Error::Peer`] or [`Error::Environment`], with a [`FailedConnection`].
    pub fn check(self) -> Result<Self, Error> {
        use CmEventKind::{AddrError, ConnectError, DeviceRemoval, MulticastError, Rejected, RouteError, Unreachable};
        match self.kind {
            AddrError | RouteError | ConnectError | Unreachable | Rejected | DeviceRemoval | MulticastError => {
                Err(self.failure())
            }
            _ => Ok(self),
        }
    }

    /// Returns the event itself if it is of this kind.
    ///
    /// # Errors
    /// [`Error::Peer`] or [`Error::Environment`] for another event; the text describes it.
    pub fn expect(self, kind: CmEventKind) -> Result<Self, Error> {
        if self.kind == kind { Ok(self) } else { Err(self.failure()) }
    }

    fn failure(&self) -> Error {
        FailedConnection { kind: self.kind, status: self.status, private_data: self.private_data().to_vec() }.into()
    }
}

/// Destination of datagrams, for [`WorkRequest::to`](crate::WorkRequest::to).
#[derive(Clone, Copy, Debug)]
pub struct UdPeer {
    /// Address of the peer.
    pub ah: AddressHandle,
    /// Queue pair of the peer.
    pub qpn: Qpn,
    /// Q_Key of that queue pair.
    pub qkey: Qkey,
}
