//! Shared by unit tests: a context on loopback, connected queue pairs, sleeping threads.

use crate::context::Context;
use crate::devices::devices;
use crate::mr::{Mr, MrChange};
use crate::pd::Pd;
use crate::qp::Qp;
use roxe_base::error::Error;
use roxe_transport::qp::{AttrMask, QpAttr};
use roxe_transport::wr::Access;
use std::os::fd::RawFd;
use std::sync::Arc;

pub(crate) use roxe_memory::testing::{PAGE_SIZE, Pages, is_resident, load};

pub(crate) fn context() -> Arc<Context> {
    devices().unwrap().first().unwrap().open().unwrap()
}

pub(crate) fn pd() -> Arc<Pd> {
    context().alloc_pd().unwrap()
}

impl Pd {
    pub(crate) fn register(
        self: &Arc<Self>,
        addr: u64,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Mr>, Error> {
        // SAFETY: tests use the memory by pointers and by the card only.
        unsafe { self.reg_mr(addr, length, iova, access) }
    }
}

impl Mr {
    pub(crate) fn change(&self, change: MrChange) -> Result<(), Error> {
        // SAFETY: as in `Pd::register`.
        unsafe { self.reregister(change) }
    }
}

/// Moves `qp` to INIT, RTR and RTS; attributes that its service lacks are ignored.
pub(crate) fn connect(qp: &Qp, [init, rtr, rts]: [QpAttr; 3]) {
    let init_mask = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    let rtr_mask = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let rtr_mask = rtr_mask | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    let rts_mask = AttrMask::SQ_PSN | AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY;
    let rts_mask = rts_mask | AttrMask::MAX_QP_RD_ATOMIC;
    for (attr, mask) in [(init, init_mask), (rtr, rtr_mask), (rts, rts_mask)] {
        qp.modify(&attr, mask | AttrMask::STATE).unwrap();
    }
}

pub(crate) fn is_readable(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: `poll` is one entry that outlives the call, which does not wait.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

/// Sleeps in `poll` until `fd`, and not another descriptor, is readable.
pub(crate) fn sleep_in_poll(fd: RawFd) {
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut entries = [entry(-1), entry(fd)];
    // SAFETY: `entries` are two entries that outlive the call.
    assert_eq!(unsafe { libc::poll(entries.as_mut_ptr(), 2, -1) }, 1);
}

pub(crate) fn sleep_in_select(fd: RawFd) {
    let none = std::ptr::null_mut();
    // SAFETY: a set is plain bytes; `fd` is below FD_SETSIZE; the set outlives the call.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::FD_ZERO(&raw mut set);
        libc::FD_SET(fd, &raw mut set);
        assert_eq!(libc::select(fd + 1, &raw mut set, none, none, std::ptr::null_mut()), 1);
    }
}

pub(crate) fn sleep_in_epoll(fd: RawFd) {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: `event` outlives the calls, and `set` is closed once, by its only owner.
    unsafe {
        let set = libc::epoll_create1(0);
        assert_eq!(libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event), 0);
        assert_eq!(libc::epoll_wait(set, &raw mut event, 1, -1), 1);
        libc::close(set);
    }
}
