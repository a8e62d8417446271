//! Path migration: a connection whose path fails continues over its alternate path (IBA §17.2.8).
//! This file reacts to packets and exhausted retries; `modify.rs` checks the attributes. Without an
//! alternate path it costs one test per packet.

use crate::cx::FlowControl;
use crate::qp::requester::Requester;
use crate::qp::shared::{DropReason, MigState, QpEvents, Service, Shared};
use crate::wr::Av;
use roxe_wire::{Header, Kind, NetHeader, Pkey};

impl Shared {
    /// Returns the M bit for a packet sent now: true requests migration, or reports that no
    /// migration is prepared.
    // clause: BTH-MIGRATED
    pub(crate) fn mig_req(&self) -> bool {
        self.attr.path_mig_state == MigState::Migrated
    }
}

impl Requester {
    /// Migrates to the alternate path if armed, and retransmits unacknowledged packets on it.
    /// Returns true if it migrated.
    pub(crate) fn migrate<F: FlowControl>(&mut self, sh: &mut Shared, flow: &mut F) -> bool {
        if sh.attr.path_mig_state != MigState::Armed {
            return false;
        }
        // Reservations belong to the old address: release them before it changes.
        if sh.config.service != Service::Uc {
            self.go_back(sh, flow);
        }
        let attr = &mut sh.attr;
        attr.av = core::mem::take(&mut attr.alt_av);
        attr.timeout = core::mem::take(&mut attr.alt_timeout);
        attr.path_mig_state = MigState::Migrated;
        sh.set_path();
        sh.events.insert(QpEvents::PATH_MIG);
        self.retry.reset(&sh.attr);
        true
    }

    /// Follows the peer's migration state in a received packet, while an alternate path is offered.
    ///
    /// # Errors
    /// The peer uses an impossible path; the packet must be dropped.
    #[cold]
    pub(crate) fn follow<F: FlowControl>(
        &mut self,
        sh: &mut Shared,
        flow: &mut F,
        net: &NetHeader,
        header: &Header,
    ) -> Result<(), DropReason> {
        // The M bit of a CNP is undefined on hardware.
        let has_mig_state = !matches!(header.kind, Kind::Cnp) && Pkey::DEFAULT.matches(header.bth.pkey);
        if !has_mig_state || !sh.state.accepts_requests() {
            return Ok(());
        }
        let used_path = |av: &Av| net.src == av.dgid && net.dst == av.sgid;
        match (sh.attr.path_mig_state, header.bth.mig_req) {
            // clause: APM-ARM
            (MigState::Rearm, false) if used_path(&sh.attr.av) => sh.attr.path_mig_state = MigState::Armed,
            // clause: APM-FOLLOW
            (MigState::Armed, true) if used_path(&sh.attr.alt_av) => {
                self.migrate(sh, flow);
            }
            // clause: APM-ASTRAY
            (MigState::Armed, true) if used_path(&sh.attr.av) => {
                // The peer requests migration on the old path. One event for each arming.
                if !core::mem::replace(&mut sh.migration_failed, true) {
                    sh.events.insert(QpEvents::PATH_MIG_ERR);
                }
                return Err(DropReason::Address);
            }
            _ => {}
        }
        Ok(())
    }
}
