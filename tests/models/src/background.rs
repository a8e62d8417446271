//! Model of the handshake between a program's polling threads and the background thread.

#[path = "../../../provider/engine/src/presence/muting.rs"]
mod muting;

use loom::sync::Arc;
use loom::thread;
use muting::{FULL, Muting};

#[test]
fn sleeping_program_leaves_background_thread_unmuted() {
    loom::model(|| {
        let muting = Arc::new(Muting::default());
        let program = Arc::clone(&muting);
        let program = thread::spawn(move || program.hand_over());
        let is_muted = muting.mute();
        let is_woken = program.join().unwrap();
        assert!(is_woken || !is_muted, "both the program and the background thread sleep");
        assert!(!(is_woken && muting.is_muted()), "a woken background thread is muted");
    });
}

#[test]
fn concurrent_hand_over_wakes_thread_once() {
    loom::model(|| {
        let muting = Arc::new(Muting::default());
        let programs = [(); 2].map(|()| {
            let program = Arc::clone(&muting);
            thread::spawn(move || program.hand_over())
        });
        let is_muted = muting.mute();
        let woken = programs.map(|program| program.join().unwrap());
        assert!(!is_muted || woken.contains(&true), "all threads sleep");
        muting.unmute();
        assert_eq!(muting.add(0), FULL);
    });
}
