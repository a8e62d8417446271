//! Asynchronous events that fault rules raise, at the opening of a device or at a call.

use crate::runtime;
use roxe_base::clock;
use roxe_check::faults;
use roxe_engine::engine::Engine;
use roxe_engine::queue_pair::DeadlineOwner;
use roxe_observe::adapter::Adapter;
use roxe_observe::port::PortChange;
use roxe_transport::fault::{EventFault, Raised};
use roxe_transport::time::Instant;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

/// Time that a port stays down if the rule sets none.
const DOWN: Duration = Duration::from_millis(10);

/// The events that the opening of a device may raise.
const OF_DEVICE: [EventFault; 3] = [EventFault::PortErr, EventFault::GidChange, EventFault::DeviceFatal];

/// A change to report to the contexts of a device.
#[derive(Debug)]
struct Due {
    adapter: Arc<Adapter>,
    change: PortChange,
}

impl DeadlineOwner for Due {
    fn on_deadline(&self, _: Instant) {
        self.adapter.report(self.change);
    }
}

/// Raises the events that rules tie to the opening of the device of `engine`.
pub(crate) fn at_open(engine: &Engine) {
    if !faults::is_on() {
        return;
    }
    faults::raise_with(at_call);
    for event in OF_DEVICE {
        for Raised { wait, time, .. } in faults::occasion(event) {
            raise(engine, event, (wait, time));
        }
    }
}

/// Raises an event on all devices of this process.
fn at_call(event: EventFault, down: Duration) {
    runtime::all().iter().for_each(|runtime| raise(runtime.engine(), event, (Duration::ZERO, down)));
}

fn raise(engine: &Engine, event: EventFault, (wait, down): (Duration, Duration)) {
    let down = if down.is_zero() { DOWN } else { down };
    let changes = match event {
        EventFault::PortErr => [Some((PortChange::Error, wait)), Some((PortChange::Active, wait + down))],
        EventFault::GidChange => [Some((PortChange::Gids, wait)), None],
        _ => [Some((PortChange::Gone, wait)), None],
    };
    for (change, wait) in changes.into_iter().flatten() {
        if wait.is_zero() {
            engine.adapter.report(change);
            continue;
        }
        after(engine, wait, Arc::new(Due { adapter: Arc::clone(&engine.adapter), change }));
    }
}

/// Adds a deadline of `owner` after this time, and leaks `owner`.
pub(crate) fn after(engine: &Engine, wait: Duration, owner: Arc<dyn DeadlineOwner>) {
    engine.scheduler.add_deadline(clock::now().after(wait), Arc::downgrade(&owner));
    // The timer holds only a weak reference. Rules name few events, so the leak is small.
    mem::forget(owner);
}
