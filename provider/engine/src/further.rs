//! Further engines of a device: one for each thread that creates completion queues, up to the
//! number of CPUs, so that threads with queue pairs of their own share no sockets, rings or receive
//! lock.
//!
//! The engine of a thread is chosen at its first completion queue, and queue pairs use the engine
//! of their send CQ: a program that creates all of them in one thread has one engine. Connection
//! manager messages are passed on to the first engine.

use crate::engine::{Engine, Services};
use roxe_base::lock::{Lockable, Mutex, rank};
use roxe_base::weakest::{self, Weakness};
use roxe_net::status::ObjectKind;
use roxe_observe::adapter::MAX_ENGINES;
use roxe_transport::cm::Route;
use roxe_transport::time::Instant;
use roxe_wire::cm::Mad;
use std::fmt::Arguments;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::thread::available_parallelism;
use std::time::Duration;

/// Held while an engine is created, so that the fork handlers see all engines.
static CREATION: Mutex<rank::MakingEngines, ()> = Mutex::new(());
static THREADS: AtomicUsize = AtomicUsize::new(0);
/// Number of engines; more than CPUs would waste memory.
static ENGINES: LazyLock<usize> = LazyLock::new(|| available_parallelism().map_or(1, Into::into).min(MAX_ENGINES));

thread_local! {
    static THREAD_NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
}

/// Returns the lock of the list of engines, for the fork handlers.
pub fn lock() -> &'static dyn Lockable {
    &CREATION
}

/// Passes messages of a further engine to the first one, which has the connection manager.
#[derive(Debug)]
struct FirstEngineServices(Weak<Engine>);

impl FirstEngineServices {
    fn with_first(&self, f: impl FnOnce(&Engine)) {
        if let Some(first) = self.0.upgrade() {
            f(&first);
        }
    }
}

impl Services for FirstEngineServices {
    fn queue_message(&self, _: &Engine, route: Route, mad: Mad) {
        self.with_first(|first| {
            first.services.queue_message(first, route, mad);
            first.scheduler.kick();
        });
    }

    // The functions below are only called on the first engine.
    fn queue_deadline(&self, _: &Engine, _: Instant) {}
    fn run_connections(&self, _: &Engine) {}
    fn end_connections(&self, _: &Engine, _: Duration) {}
    fn interface_changed(&self, _: &Engine) {}
    fn list_objects(&self, _: &Engine, _: ObjectKind, _: &mut dyn FnMut(Arguments<'_>)) {}
}

impl Engine {
    /// Returns the engine for objects created by the calling thread. With an interceptor, which
    /// needs all packets in order, and on the weakest legal card it is always the first engine.
    pub fn of_this_thread(self: &Arc<Self>) -> Arc<Self> {
        if self.interceptor().is_some() || weakest::has(Weakness::all()) {
            return Arc::clone(self);
        }
        // A thread that is exiting has no number any more.
        let number = THREAD_NUMBER.try_with(|number| number % *ENGINES).unwrap_or_default();
        self.by_number(number)
    }

    pub(crate) fn by_number(self: &Arc<Self>, number: usize) -> Arc<Self> {
        let Some(place) = number.checked_sub(1).and_then(|at| self.further.get(at)) else { return Arc::clone(self) };
        if place.get().is_none() {
            let _making = CREATION.lock();
            place.get_or_init(|| {
                let services = Arc::new(FirstEngineServices(Arc::downgrade(self)));
                Self::new(Arc::clone(&self.adapter), number, self.config, None, services)
            });
        }
        place.get().map_or_else(|| Arc::clone(self), Arc::clone)
    }

    /// Returns the further engines of the device, if this is the first.
    pub fn further(&self) -> impl Iterator<Item = &Arc<Self>> {
        self.further.iter().filter_map(|place| place.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{FakeQp, private_engine};
    use roxe_base::config::config;
    use roxe_net::slot::Slot;
    use roxe_net::status::Query;

    #[test]
    fn threads_get_engines_round_robin_up_to_cpu_count() {
        let engine = private_engine(config().unwrap());
        let new_thread_engine =
            || std::thread::scope(|scope| scope.spawn(|| engine.of_this_thread().number()).join().unwrap());
        let numbers: Vec<_> = (0..3 * *ENGINES).map(|_| new_thread_engine()).collect();
        let count = numbers.iter().max().unwrap() + 1;
        assert_eq!(count, *ENGINES, "{numbers:?}");
        assert_eq!(engine.further().count(), *ENGINES - 1);
        let here = engine.of_this_thread();
        assert!(Arc::ptr_eq(&here, &engine.of_this_thread()), "a thread keeps its engine");
    }

    #[test]
    fn each_number_has_one_engine_and_others_use_first() {
        let engine = private_engine(config().unwrap());
        let second = engine.by_number(1);
        assert!(!second.is_first() && Arc::ptr_eq(&second, &engine.by_number(1)));
        assert!([0, MAX_ENGINES].iter().all(|number| Arc::ptr_eq(&engine, &engine.by_number(*number))));
    }

    #[test]
    fn first_engine_reports_all_counters() {
        let engine = private_engine(config().unwrap());
        let second = engine.by_number(1);
        engine.counters().sent_packets.add(7);
        second.counters().sent_packets.add(5);
        second.table.add_slot(Slot::new(4));
        assert!(second.table.insert(5, |qpn| Arc::new(FakeQp(qpn))));
        let text = engine.text(&Query::Status);
        assert!(text.lines().any(|line| line == "counter sent_packets 12"), "{text}");
        assert!(text.lines().any(|line| line.starts_with("qp qpn=0x4005 ")), "{text}");
    }

    #[test]
    fn releasing_first_engine_ends_all_threads() {
        let engine = private_engine(config().unwrap());
        let second = engine.by_number(1);
        [&engine, &second].into_iter().for_each(|engine| engine.watch());
        let thread = second.scheduler.thread.read().clone().unwrap();
        drop(second);
        engine.release();
        assert_eq!(Arc::strong_count(&thread), 1, "no other thread holds it");
    }
}
