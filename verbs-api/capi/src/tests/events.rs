//! Channels without events; destroying a queue with unacknowledged events.

use super::*;
use crate::event::{ibv_ack_cq_events, ibv_get_cq_event};
use crate::object::{Token, with_token};
use crate::rdmacm::{rdma_create_event_channel, rdma_destroy_event_channel};
use core::sync::atomic::{AtomicBool, Ordering};

pub(super) fn set_nonblocking(fd: c_int) {
    // SAFETY: plain fcntl on an open descriptor.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) }, 0);
}

/// Waits for a completion event; 0 or -1 with errno.
pub(super) fn get_cq_event(rig: &Rig) -> (c_int, *mut ibv_cq) {
    let (mut cq, mut cq_context) = (null_mut(), null_mut());
    // SAFETY: a live channel and two variables.
    let rc = unsafe { ibv_get_cq_event(rig.channel, &raw mut cq, &raw mut cq_context) };
    (rc, cq)
}

#[test]
fn event_descriptors_never_poll_as_writable() {
    let rig = Rig::new();
    // SAFETY: takes no arguments.
    let cm = unsafe { rdma_create_event_channel() };
    // SAFETY: a live channel, context and channel.
    let fds = unsafe { [(*rig.channel).fd, (*rig.context).async_fd, (*cm).fd] };
    let mut polls = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN | libc::POLLOUT, revents: 0 });
    // SAFETY: three entries that outlive the call.
    let ready = unsafe { libc::poll(polls.as_mut_ptr(), 3, 0) };
    assert_eq!((ready, polls.map(|poll| poll.revents)), (0, [0; 3]));
    // SAFETY: a live channel without identifiers.
    unsafe { rdma_destroy_event_channel(cm) };
}

#[test]
fn nonblocking_channel_is_eagain() {
    let rig = Rig::new();
    // SAFETY: a live channel and context.
    unsafe {
        set_nonblocking((*rig.channel).fd);
        set_nonblocking((*rig.context).async_fd);
    }
    assert_eq!((get_cq_event(&rig), errno()), ((-1, null_mut()), libc::EAGAIN));
    let mut event = ibv_async_event { element: async_element { port_num: 0 }, event_type: 0 };
    // SAFETY: a live context and a valid structure.
    assert_eq!(unsafe { ibv_get_async_event(rig.context, &raw mut event) }, -1);
    assert_eq!(errno(), libc::EAGAIN);
}

#[test]
fn destroy_cq_waits_for_acknowledgement() {
    static ACKED: AtomicBool = AtomicBool::new(false);
    let mut rig = Rig::new();
    // SAFETY: a live context and channel.
    let cq = unsafe { ibv_create_cq(rig.context, 16, null_mut(), rig.channel, 0) };
    let token = Token(crate::objects::cq(cq).unwrap().user());
    let classic = core::mem::replace(&mut rig.cq, cq);
    let [a, b] = rig.rc_pair();
    assert_eq!(rig.post_recv(b, 1, &[rig.sge(100, 1)]), 0);
    // SAFETY: a live CQ.
    unsafe { rig.ops().req_notify_cq.unwrap()(rig.cq, 0) };
    let sges = [rig.sge(0, 1)];
    assert_eq!(rig.post_send(a, &mut send_wr(2, 2, &sges)).0, 0);
    assert_eq!(get_cq_event(&rig).0, 0);
    destroy(&[a, b]);
    let address = cq.expose_provenance();
    let destroyer = std::thread::spawn(move || {
        // SAFETY: a live CQ that only this thread destroys.
        assert_eq!(unsafe { ibv_destroy_cq(ptr::with_exposed_provenance_mut(address)) }, 0);
        assert!(ACKED.load(Ordering::SeqCst), "destroyed before the event was acknowledged");
    });
    // Once events no longer find the CQ, the other thread waits or is about to.
    while is_listed(token) {
        std::thread::yield_now();
    }
    ACKED.store(true, Ordering::SeqCst);
    // SAFETY: the CQ lives until this event is acknowledged.
    unsafe { ibv_ack_cq_events(cq, 1) };
    destroyer.join().unwrap();
    rig.cq = classic;
}

/// Returns true while events find this CQ.
fn is_listed(token: Token) -> bool {
    with_token::<ibv_cq_ex, _>(token, |_| ()).is_some()
}
