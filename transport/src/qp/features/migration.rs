//! Path migration: a connection whose path is lost goes on over its alternate path (IBA §17.2.8).
//!
//! Lives here: what packets of the peer and exhausted retries do to the state of migration. What
//! software may set is in `modify.rs`. Without an alternate path all of this costs one test of that
//! state for each packet.

use crate::cx::FlowControl;
use crate::qp::requester::Requester;
use crate::qp::shared::{DropReason, MigState, QpEvents, Service, Shared};
use crate::wr::Av;
use roxe_wire::{Header, Kind, NetHeader, Pkey};

impl Shared {
    /// The M bit of a packet that is sent now: the peer shall go over, or has nothing to do.
    // clause: BTH-MIGRATED
    pub(crate) fn mig_req(&self) -> bool {
        self.attr.path_mig_state == MigState::Migrated
    }
}

impl Requester {
    /// Goes over to the alternate path if it is armed, and repeats there what is not acknowledged.
    /// Says whether it did.
    pub(crate) fn migrate<F: FlowControl>(&mut self, sh: &mut Shared, flow: &mut F) -> bool {
        if sh.attr.path_mig_state != MigState::Armed {
            return false;
        }
        // Room is reserved at the old address, so it goes back before the address changes.
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

    /// Learns from a packet what the peer does with its path, while an alternate one is offered.
    ///
    /// # Errors
    /// It asks for what cannot be; it must not be taken.
    #[cold]
    pub(crate) fn follow<F: FlowControl>(
        &mut self,
        sh: &mut Shared,
        flow: &mut F,
        net: &NetHeader,
        header: &Header,
    ) -> Result<(), DropReason> {
        // A notification of congestion says nothing about paths: hardware leaves its M bit as it
        // comes.
        let is_told = !matches!(header.kind, Kind::Cnp) && Pkey::DEFAULT.matches(header.bth.pkey);
        if !is_told || !sh.state.accepts_requests() {
            return Ok(());
        }
        let came_by = |av: &Av| net.src == av.dgid && net.dst == av.sgid;
        match (sh.attr.path_mig_state, header.bth.mig_req) {
            // clause: APM-ARM
            (MigState::Rearm, false) if came_by(&sh.attr.av) => sh.attr.path_mig_state = MigState::Armed,
            // clause: APM-FOLLOW
            (MigState::Armed, true) if came_by(&sh.attr.alt_av) => {
                self.migrate(sh, flow);
            }
            // clause: APM-ASTRAY
            (MigState::Armed, true) if came_by(&sh.attr.av) => {
                // The peer wants something of this path that cannot be. Told once for each time
                // that software arms.
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
