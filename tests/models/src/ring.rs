//! Model of the wake-ups of a ring: no reader sleeps while there is a record, and no writer waits
//! while there is room.

#[path = "../../../provider/net/src/shm/wakeup.rs"]
mod wakeup;

use crate::sync::{AtomicU64, Ordering};
use loom::sync::Arc;
use loom::thread;

/// The words of a ring that both sides access.
#[derive(Default)]
struct Words {
    header: AtomicU64,
    head: AtomicU64,
    asleep: AtomicU64,
    wake_at: AtomicU64,
}

#[test]
fn sleeping_reader_is_woken_or_finds_record() {
    loom::model(|| {
        let words = Arc::new(Words::default());
        let writer = Arc::clone(&words);
        let writer = thread::spawn(move || {
            writer.header.store(1, Ordering::Release);
            wakeup::must_wake(&writer.asleep)
        });
        let found = wakeup::announce_sleep(&words.asleep, || words.header.load(Ordering::Acquire) != 0);
        assert!(writer.join().unwrap() || found, "the reader sleeps although there is a record");
        wakeup::withdraw_sleep(&words.asleep);
        assert!(!wakeup::must_wake(&words.asleep), "an awake reader is woken");
    });
}

#[test]
fn waiting_writer_is_woken_or_finds_room() {
    loom::model(|| {
        let words = Arc::new(Words::default());
        let reader = Arc::clone(&words);
        let reader = thread::spawn(move || {
            [4, 8].map(|read| {
                reader.head.store(read, Ordering::Release);
                wakeup::must_wake_writer(&reader.wake_at, read)
            })
        });
        let found = wakeup::announce_wait(&words.wake_at, 8, || words.head.load(Ordering::Acquire) >= 8);
        let woken = reader.join().unwrap();
        assert!(!woken[0], "the writer is woken without enough room");
        assert!(woken[1] || found, "the writer waits although there is room");
    });
}
