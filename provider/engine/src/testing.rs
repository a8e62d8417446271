//! Shared by unit tests: a private engine, and a queue pair that does nothing.

use crate::engine::{Engine, Services};
use crate::flow_control::Grant;
use crate::queue_pair::{QpStats, QueuePair, VisitOutcome};
use crate::run::{Joined, Run, RxTools};
use roxe_base::config::{Config, config};
use roxe_base::lock::Lockable;
use roxe_memory::guard::SharedBytes;
use roxe_net::link::RxMeta;
use roxe_net::status::ObjectKind;
use roxe_observe::adapter::Adapter;
use roxe_observe::port::Netdev;
use roxe_transport::cm::Route;
use roxe_transport::qp::{FrameNote, MigState, QpState, QpStatus, Service};
use roxe_transport::time::Instant;
use roxe_wire::cm::Mad;
use roxe_wire::{Gid, NetHeader, Packet, Psn, Qpn};
use std::fmt::Arguments;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

/// Starts an engine on loopback that no other test uses, without services.
pub(crate) fn private_engine(config: &'static Config) -> Arc<Engine> {
    engine_on(&Netdev::find(1).unwrap().unwrap(), config)
}

/// Starts a [`private_engine`] with one loopback address that no other test uses.
pub(crate) fn private_engine_at(address: Ipv4Addr) -> Arc<Engine> {
    let loopback = Netdev::find(1).unwrap().unwrap();
    engine_on(&Netdev { addresses: vec![address.into()], ..loopback }, config().unwrap())
}

fn engine_on(netdev: &Netdev, config: &'static Config) -> Arc<Engine> {
    let adapter = Arc::new(Adapter::new(0, netdev));
    Engine::new(adapter, 0, config, None, Arc::new(NoServices))
}

/// Ignores all calls.
#[derive(Debug)]
struct NoServices;

impl Services for NoServices {
    fn queue_message(&self, _: &Engine, _: Route, _: Mad) {}
    fn queue_deadline(&self, _: &Engine, _: Instant) {}
    fn run_connections(&self, _: &Engine) {}
    fn end_connections(&self, _: &Engine, _: Duration) {}
    fn interface_changed(&self, _: &Engine) {}

    fn list_objects(&self, _: &Engine, kind: ObjectKind, line: &mut dyn FnMut(Arguments<'_>)) {
        if kind == ObjectKind::Pd {
            (1..3).for_each(|number| line(format_args!("n={number}")));
        }
    }
}

/// A queue pair that accepts all packets and ignores them.
#[derive(Debug)]
pub(crate) struct FakeQp(pub(crate) Qpn);

impl QueuePair for FakeQp {
    fn qpn(&self) -> Qpn {
        self.0
    }

    fn ordinal(&self) -> u32 {
        0
    }

    fn service(&self) -> Service {
        Service::Rc
    }

    fn status(&self) -> (QpStatus, QpStats) {
        let (psn, peer) = (Psn::new(0), (Qpn::new(0), Gid::default()));
        let status = QpStatus {
            qpn: self.0,
            service: Service::Rc,
            state: QpState::Rts,
            peer,
            path_mtu: 1024,
            sends: 0,
            outstanding: 0,
            unacknowledged: 0,
            window: 0,
            reads: 0,
            sent: psn,
            received: 0,
            expected: psn,
            in_rnr_wait: false,
            migration: MigState::Rearm,
        };
        (status, QpStats::default())
    }

    fn pd_and_srq(&self) -> (u32, Option<u32>) {
        (7, Some(3))
    }

    fn is_work_queue(&self) -> bool {
        false
    }

    fn receive(&self, _: Run<'_>, _: &mut RxTools<'_>, _: Instant) -> VisitOutcome {
        VisitOutcome::empty()
    }

    fn receive_joined(&self, _: &RxMeta, _: &Joined<'_>, _: Instant) -> Option<VisitOutcome> {
        None
    }

    fn takes_shared_payload(&self) -> bool {
        false
    }

    fn receive_shared(&self, _: &RxMeta, _: (&[u8], usize), _: SharedBytes<'_>, _: Instant) -> VisitOutcome {
        VisitOutcome::empty()
    }

    fn receive_frame(&self, _: &[u8], _: FrameNote, _: Instant) -> VisitOutcome {
        VisitOutcome::empty()
    }

    fn return_credit(&self, _: &Packet<'_>, _: &NetHeader, _: &RxTools<'_>) {}

    fn is_crowded(&self) -> bool {
        false
    }

    fn serve(&self, _: Instant) {}

    fn serve_or_delay_ack(&self, _: VisitOutcome, _: Instant) -> Option<Instant> {
        None
    }

    fn send_delayed_ack(&self, _: Instant) {}
    fn serve_waiter(&self, _: Option<Grant>, _: Instant) {}
    fn on_timer(&self, _: Instant, _: Instant) {}
    fn announce(&self, _: VisitOutcome) {}

    fn cut_off(&self) -> bool {
        true
    }

    fn lockable(&self) -> &dyn Lockable {
        unreachable!("tests with this queue pair do not fork")
    }
}
