//! Model of flow control: a sender without credits gets them once they are released.

#[path = "../../../provider/engine/src/flow_control/used.rs"]
mod used;
// The model does not include the queue pair's work in its turn.
#[allow(dead_code, unreachable_pub)]
#[path = "../../../provider/engine/src/flow_control/waiters.rs"]
mod waiters;

use loom::sync::Arc;
use loom::thread;
use roxe_wire::Qpn;
use used::Used;
use waiters::RoomQueue;

/// Bytes of the window.
const WINDOW: u32 = 2;

/// The provider's window in its simplest form.
#[derive(Debug, Default)]
struct Flow {
    used: Used,
    waiters: RoomQueue,
}

impl Flow {
    fn reserve(&self, bytes: u32) -> bool {
        let fits = self.used.take(bytes) + bytes <= WINDOW;
        if !fits {
            self.used.give(bytes);
        }
        fits
    }

    /// Reserves bytes; without room registers as a waiter and tries again. Returns true if the
    /// bytes are reserved.
    fn reserve_or_wait(&self, qpn: Qpn, bytes: u32) -> bool {
        self.reserve(bytes) || {
            self.waiters.push(qpn, bytes);
            self.reserve(bytes)
        }
    }

    /// Releases bytes. Returns the waiter that can use them now.
    fn release(&self, bytes: u32) -> Option<Qpn> {
        self.used.give(bytes);
        let room = |bytes| (self.used.get() + bytes <= WINDOW).then_some(bytes);
        if self.waiters.has_waiters() { self.waiters.pop_if(room).map(|(qpn, _)| qpn) } else { None }
    }
}

#[test]
fn waiter_for_room_is_served_or_finds_it() {
    loom::model(|| {
        let flow = Arc::new(Flow::default());
        assert!(flow.reserve(WINDOW));
        let releaser = Arc::clone(&flow);
        let releaser = thread::spawn(move || releaser.release(WINDOW));
        let found = flow.reserve_or_wait(Qpn::new(7), 1);
        let served = releaser.join().unwrap();
        assert!(found || served == Some(Qpn::new(7)), "the waiter sleeps although all bytes are free");
        assert_eq!(flow.used.get(), u32::from(found));
    });
}

#[test]
fn concurrent_releases_return_all_credits() {
    loom::model(|| {
        let flow = Arc::new(Flow::default());
        assert!(flow.reserve(WINDOW));
        let others = [(); 2].map(|()| {
            let other = Arc::clone(&flow);
            thread::spawn(move || other.used.give(1))
        });
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(flow.reserve(WINDOW));
        flow.used.clear();
        assert!(flow.reserve(WINDOW));
    });
}
