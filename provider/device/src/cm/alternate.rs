//! Alternate paths of a connection: one end proposes another path, both load it into their queue
//! pairs, which go over to it when the first path fails (`ibv_modify_qp`, path migration).
//!
//! librdmacm has no calls for this, so only programs in Rust do it. Nothing of a peer's proposal is
//! loaded without [`Id::take_alternates`]: it lets the peer choose where packets may go.

use super::event::{EventData, EventKind, Told};
use super::id::{Id, Inner, State, refused};
use super::route::Path;
use crate::ib_cm::Session;
use roxe_base::error::Error;
use roxe_base::limits;
use roxe_transport::cm::{Alternate, AlternateAnswer, Route};
use roxe_transport::qp::{AttrMask, MigState, QpAttr};
use roxe_wire::Gid;
use roxe_wire::cm::{AprStatus, CommId, FlowLabel, Lap, TimeCode};

/// Verbs.
impl Id {
    /// Whether the queue pair loads alternate paths that the peer proposes from now on. It says no
    /// by itself.
    ///
    /// EINVAL: not connected, or no queue pair attached.
    pub fn take_alternates(&self, takes: bool) -> Result<(), Error> {
        self.engine()?.cm(|session| {
            let inner = self.lock();
            inner.check(&[State::Connected])?;
            inner.attached()?;
            session.cm.take_alternates(inner.alive()?, takes).map_err(|e| refused(&e))
        })?
    }

    /// Proposes an alternate path to the peer. Comes to [`EventKind::RouteResolved`] when both
    /// queue pairs have it, armed as soon as a packet has come; or to [`EventKind::RouteError`]:
    /// the status is a negative errno, -EOPNOTSUPP if the peer's program does not want any, or the
    /// positive status of an APR.
    ///
    /// EINVAL: not established, no queue pair attached, a proposal is under way, or `path` does not
    /// begin at an address of the device.
    pub fn load_alternate(&self, path: &Path) -> Result<(), Error> {
        self.engine()?.cm(|session| {
            let mut inner = self.lock();
            inner.check(&[State::Connected])?;
            inner.attached()?;
            inner.index_of(path.sgid)?;
            let alternate = Alternate {
                flow_label: FlowLabel::new(path.flow_label),
                traffic_class: path.traffic_class,
                hop_limit: path.hop_limit,
                packet_lifetime: TimeCode::new(path.packet_life_time),
                ..Alternate::new(path.route())
            };
            let comm = inner.alive()?;
            session.cm.load_alternate(&mut session.cx, comm, &alternate).map_err(|e| refused(&e))?;
            inner.alternates.proposed = Some(*path);
            Ok(())
        })?
    }
}

impl Inner {
    fn attached(&self) -> Result<(), Error> {
        if self.qp.is_some() { Ok(()) } else { Err(Error::invalid("the id has no queue pair")) }
    }

    /// Where the device has an address.
    fn index_of(&self, sgid: Gid) -> Result<u8, Error> {
        let found =
            self.device_addr()?.device.adapter().gids().used().find(|(_, gid)| *gid == sgid).map(|(index, _)| index);
        found.ok_or_else(|| Error::invalid(format!("{sgid} is no address of the device")))
    }

    /// The queue pair may go over to this path from now on, if its peer may.
    // clause: CM-QP-ALTERNATE
    fn rearm(&self, path: &Path) -> Result<(), Error> {
        let alt_av = path.av(self.index_of(path.sgid)?);
        let alt_timeout = path.packet_life_time.saturating_add(1).min(31);
        let path_mig_state = MigState::Rearm;
        let attr = QpAttr { alt_av, alt_port: limits::PORTS, alt_timeout, path_mig_state, ..QpAttr::default() };
        self.device_addr()?.engine.ensure_link(path.sgid)?;
        let mask = AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE;
        self.qp.as_ref().map_or(Ok(()), |qp| qp.modify_at_once(&attr, mask))
    }

    /// The peer proposes a path: loads it and says so, or why not.
    pub(super) fn take_alternate(&mut self, session: &mut Session<'_>, comm: CommId, lap: &Lap) {
        let route = Route { local: lap.remote_gid, remote: lap.local_gid };
        let Some(own) = self.path else { return };
        let path = Path {
            flow_label: lap.flow_label.get(),
            hop_limit: lap.hop_limit,
            traffic_class: lap.traffic_class,
            packet_life_time: lap.local_ack_timeout.get().saturating_sub(1),
            ..Path::between(route, own.mtu)
        };
        let status = match self.index_of(path.sgid).map_err(|_| AprStatus::InvalidGid) {
            Err(status) => status,
            Ok(_) if self.rearm(&path).is_ok() => AprStatus::Success,
            Ok(_) => AprStatus::Reject,
        };
        if status == AprStatus::Success {
            self.alternates.loaded = Some(path);
        }
        // It cannot fail: the question has come this moment.
        let _ = session.cm.answer_alternate(comm, &AlternateAnswer::new(status));
    }

    /// The peer has loaded what was proposed, or has not.
    pub(super) fn take_answer(&mut self, status: AprStatus) -> Told {
        let loaded = match (status, self.alternates.proposed.take()) {
            (AprStatus::Success, Some(path)) => self.rearm(&path).map(|()| path).map_err(|e| -e.errno()),
            (AprStatus::Unsupported, _) => Err(-libc::EOPNOTSUPP),
            (status, _) => Err(status.code().into()),
        };
        match loaded {
            Ok(path) => {
                self.alternates.loaded = Some(path);
                (EventKind::RouteResolved, 0, EventData::None)
            }
            Err(status) => self.no_alternate(status),
        }
    }

    /// Nothing came of what was proposed.
    pub(super) fn no_alternate(&mut self, status: i32) -> Told {
        self.alternates.proposed = None;
        (EventKind::RouteError, status, EventData::None)
    }

    /// The queue pair has gone over.
    // clause: CM-MIGRATED
    pub(super) fn migrated(&mut self, session: &mut Session<'_>) -> Result<(), Error> {
        session.cm.migrated(self.alive()?).map_err(|e| refused(&e))?;
        std::mem::swap(&mut self.path, &mut self.alternates.loaded);
        Ok(())
    }
}
