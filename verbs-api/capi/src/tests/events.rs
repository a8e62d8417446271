//! Channels without events; destroying a queue with unacknowledged events.

use super::*;
use crate::event::{ibv_ack_cq_events, ibv_get_cq_event};
use crate::object::{Token, with_token};
use crate::rdmacm::{rdma_create_event_channel, rdma_destroy_event_channel};
use core::sync::atomic::{AtomicBool, Ordering};

pub(super) fn set_nonblocking(fd: c_int) {
    // SAFETY: the call takes numbers only.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) }, 0);
}

/// Waits for a completion event. Returns 0, or -1 with errno, and the CQ.
pub(super) fn get_cq_event(rig: &Rig) -> (c_int, *mut ibv_cq) {
    let (mut cq, mut cq_context) = (null_mut(), null_mut());
    // SAFETY: the rig keeps the channel alive; the pointers are to local variables.
    let rc = unsafe { ibv_get_cq_event(rig.channel, &raw mut cq, &raw mut cq_context) };
    (rc, cq)
}

#[test]
fn event_descriptors_never_poll_as_writable() {
    let rig = Rig::new();
    // SAFETY: the call takes no arguments.
    let cm = unsafe { rdma_create_event_channel() };
    // SAFETY: the rig and this test keep them alive.
    let fds = unsafe { [(*rig.channel).fd, (*rig.context).async_fd, (*cm).fd] };
    let mut polls = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN | libc::POLLOUT, revents: 0 });
    // SAFETY: `polls` has three entries.
    let ready = unsafe { libc::poll(polls.as_mut_ptr(), 3, 0) };
    assert_eq!((ready, polls.map(|poll| poll.revents)), (0, [0; 3]));
    // SAFETY: this value's channel has no identifiers left, and nothing uses it afterwards.
    unsafe { rdma_destroy_event_channel(cm) };
}

#[test]
fn nonblocking_channel_is_eagain() {
    let rig = Rig::new();
    // SAFETY: the rig keeps both alive.
    unsafe {
        set_nonblocking((*rig.channel).fd);
        set_nonblocking((*rig.context).async_fd);
    }
    assert_eq!((get_cq_event(&rig), errno()), ((-1, null_mut()), libc::EAGAIN));
    let mut event = ibv_async_event { element: async_element { port_num: 0 }, event_type: 0 };
    // SAFETY: the rig keeps the context alive; the structure is a local variable.
    assert_eq!(unsafe { ibv_get_async_event(rig.context, &raw mut event) }, -1);
    assert_eq!(errno(), libc::EAGAIN);
}

#[test]
fn destroy_cq_waits_for_acknowledgement() {
    static ACKED: AtomicBool = AtomicBool::new(false);
    let mut rig = Rig::new();
    // SAFETY: the rig keeps both alive.
    let cq = unsafe { ibv_create_cq(rig.context, 16, null_mut(), rig.channel, 0) };
    let token = Token(crate::objects::cq(cq).unwrap().user_context());
    let plain_cq = core::mem::replace(&mut rig.cq, cq);
    let [a, b] = rig.rc_pair();
    assert_eq!(rig.post_recv(b, 1, &[rig.sge(100, 1)]), 0);
    // SAFETY: the rig keeps the CQ alive.
    unsafe { rig.ops().req_notify_cq.unwrap()(rig.cq, 0) };
    let sges = [rig.sge(0, 1)];
    assert_eq!(rig.post_send(a, &mut send_wr(2, SEND, &sges)).0, 0);
    assert_eq!(get_cq_event(&rig).0, 0);
    destroy(&[a, b]);
    let address = cq.expose_provenance();
    let destroyer = std::thread::spawn(move || {
        // SAFETY: the test created the CQ, and only this thread destroys it.
        assert_eq!(unsafe { ibv_destroy_cq(ptr::with_exposed_provenance_mut(address)) }, 0);
        assert!(ACKED.load(Ordering::SeqCst), "destroyed before the event was acknowledged");
    });
    // Once the CQ is hidden from events, the other thread waits for the acknowledgement or is about
    // to.
    while is_listed(token) {
        std::thread::yield_now();
    }
    ACKED.store(true, Ordering::SeqCst);
    // SAFETY: the other thread's destroy call keeps the CQ until this event is acknowledged.
    unsafe { ibv_ack_cq_events(cq, 1) };
    destroyer.join().unwrap();
    rig.cq = plain_cq;
}

/// Returns true until the destroy call hides this CQ from events.
fn is_listed(token: Token) -> bool {
    with_token::<ibv_cq_ex, _>(token, |_| ()).is_some()
}
