//! What the unit tests share: a context on loopback, connected queue pairs, forks.

use crate::context::Context;
use crate::devices::devices;
use crate::pd::Pd;
use crate::qp::Qp;
use roxe_transport::qp::{AttrMask, QpAttr};
use std::os::fd::RawFd;
use std::sync::Arc;

pub(crate) use roxe_memory::testing::{PAGE, Pages, is_resident, load};

/// A context of its own on the first device.
pub(crate) fn context() -> Arc<Context> {
    devices().unwrap().first().unwrap().open().unwrap()
}

/// A protection domain in a context of its own.
pub(crate) fn pd() -> Arc<Pd> {
    context().alloc_pd().unwrap()
}

/// Takes `qp` to INIT, RTR and RTS. An end passes over what it does not have.
pub(crate) fn connect(qp: &Qp, [init, rtr, rts]: [QpAttr; 3]) {
    let of_init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    let of_rtr = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let of_rtr = of_rtr | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    let of_rts = AttrMask::SQ_PSN | AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY;
    let of_rts = of_rts | AttrMask::MAX_QP_RD_ATOMIC;
    for (attr, mask) in [(init, of_init), (rtr, of_rtr), (rts, of_rts)] {
        qp.modify(&attr, mask | AttrMask::STATE).unwrap();
    }
}

/// Whether there is something to read, now.
pub(crate) fn is_readable(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which outlives the call; it does not wait.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}
