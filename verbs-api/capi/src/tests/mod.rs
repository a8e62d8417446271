//! Tests through the exported functions and the function pointers that the inline functions of
//! verbs.h use, on the loopback device.

mod advise;
mod async_events;
mod buffers;
mod builders;
mod cm_addresses;
mod cm_assigned;
mod cm_connections;
mod cm_endpoints;
mod cm_events;
mod cm_groups;
mod cm_misuse;
mod completions;
mod dm;
mod domains;
mod errnos;
mod events;
mod flows;
mod identity;
mod memory;
mod migration;
mod misuse;
mod multicast;
mod rates;
mod regions;
mod rsocket;
mod states;
mod table;
mod tags;
mod traffic;
mod wq;
mod xrc;

use crate::abi::*;
use crate::ah::{ibv_create_ah, ibv_destroy_ah};
use crate::context::ibv_close_device;
use crate::context::ibv_open_device;
use crate::cq::{ibv_create_cq, ibv_destroy_cq};
use crate::device::{ibv_free_device_list, ibv_get_device_list};
use crate::domain::{ibv_alloc_pd, ibv_dealloc_pd};
use crate::event::{ibv_ack_async_event, ibv_create_comp_channel, ibv_destroy_comp_channel, ibv_get_async_event};
use crate::memory::{ibv_dereg_mr, ibv_reg_mr};
use crate::qp::create_qp_ex;
use crate::qp::{ibv_create_qp, ibv_destroy_qp, ibv_modify_qp, ibv_query_qp};
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::{self, null_mut};
use std::time::{Duration, Instant};

const RC: c_int = 2;
const UD: c_int = 4;
const INIT: c_int = 1;
const RTR: c_int = 2;
const RTS: c_int = 3;
const SQD: c_int = 4;
const ERR: c_int = 6;
const QKEY: u32 = 0x1111_1111;
/// `IBV_WR_*`.
const WRITE: u32 = 0;
const SEND: u32 = 2;
const READ: u32 = 4;
const BIND_MW: u32 = 8;
const ATOMIC_WRITE: u32 = 15;
/// `IBV_WC_REM_ACCESS_ERR`.
const REM_ACCESS_ERR: u32 = 10;
/// `IBV_REREG_MR_CHANGE_*`.
const REREG_TRANSLATION: c_int = 1;
const REREG_PD: c_int = 2;
const REREG_ACCESS: c_int = 4;
/// `IBV_QP_STATE`.
const STATE: c_int = mask::STATE;
/// Masks of the steps to RTS of an RC QP.
const TO_INIT: c_int = STATE | mask::ACCESS_FLAGS | mask::PKEY_INDEX | mask::PORT;
const TO_RTR: c_int = TO_RTR_OF_UC | mask::MIN_RNR_TIMER | mask::MAX_DEST_RD_ATOMIC;
const TO_RTR_OF_UC: c_int = STATE | mask::AV | mask::PATH_MTU | mask::RQ_PSN | mask::DEST_QPN;
const TO_RTS: c_int = STATE | mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC | mask::SQ_PSN;
/// `IBV_ACCESS_LOCAL_WRITE`.
const LOCAL_WRITE: c_int = 1;
/// LOCAL_WRITE and every remote right.
const ALL_ACCESS: c_int = 0xf;
/// A test that waits this long has failed.
const TIMEOUT: Duration = Duration::from_secs(20);

/// `IBV_QP_*`: attributes of a QP.
mod mask {
    use super::c_int;

    pub(super) const STATE: c_int = 1;
    pub(super) const EN_SQD_ASYNC_NOTIFY: c_int = 1 << 2;
    pub(super) const ACCESS_FLAGS: c_int = 1 << 3;
    pub(super) const PKEY_INDEX: c_int = 1 << 4;
    pub(super) const PORT: c_int = 1 << 5;
    pub(super) const QKEY: c_int = 1 << 6;
    pub(super) const AV: c_int = 1 << 7;
    pub(super) const PATH_MTU: c_int = 1 << 8;
    pub(super) const TIMEOUT: c_int = 1 << 9;
    pub(super) const RETRY_CNT: c_int = 1 << 10;
    pub(super) const RNR_RETRY: c_int = 1 << 11;
    pub(super) const RQ_PSN: c_int = 1 << 12;
    pub(super) const MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    pub(super) const ALT_PATH: c_int = 1 << 14;
    pub(super) const MIN_RNR_TIMER: c_int = 1 << 15;
    pub(super) const SQ_PSN: c_int = 1 << 16;
    pub(super) const MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    pub(super) const PATH_MIG_STATE: c_int = 1 << 18;
    pub(super) const DEST_QPN: c_int = 1 << 20;
}

/// Returns `errno` of this thread.
fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// An opened device with a domain, a channel, a CQ on it, and 8 KiB of registered memory.
struct Rig {
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    channel: *mut ibv_comp_channel,
    cq: *mut ibv_cq,
    mr: *mut ibv_mr,
    memory: Box<[u64; 1024]>,
}

impl Rig {
    fn new() -> Self {
        let mut memory = Box::new([0u64; 1024]);
        let addr: *mut c_void = memory.as_mut_ptr().cast();
        // SAFETY: this function created the handles; `memory` moves into the rig, and its block
        // stays where it is.
        unsafe {
            let list = ibv_get_device_list(null_mut());
            assert!(!list.is_null());
            let context = ibv_open_device(*list);
            ibv_free_device_list(list);
            let pd = ibv_alloc_pd(context);
            let channel = ibv_create_comp_channel(context);
            let cq = ibv_create_cq(context, 64, null_mut(), channel, 0);
            let mr = ibv_reg_mr(pd, addr, size_of_val(&*memory), ALL_ACCESS);
            assert!(![context.cast(), pd.cast(), channel.cast(), cq.cast(), mr.cast::<c_void>()].contains(&null_mut()));
            Self { context, pd, channel, cq, mr, memory }
        }
    }

    fn ops(&self) -> &ibv_context_ops {
        // SAFETY: the rig keeps the context alive.
        unsafe { &(*self.context).ops }
    }

    fn lkey(&self) -> u32 {
        // SAFETY: the rig keeps the region alive.
        unsafe { (*self.mr).lkey }
    }

    fn rkey(&self) -> u32 {
        // SAFETY: the rig keeps the region alive.
        unsafe { (*self.mr).rkey }
    }

    /// Returns the address of the word at `index` of the registered memory.
    fn addr(&self, index: usize) -> u64 {
        self.memory.as_ptr().wrapping_add(index).addr() as u64
    }

    /// Returns the word at `index`, read after the device may have written it.
    fn word(&self, index: usize) -> u64 {
        // SAFETY: `index` is below 1024, the words that the rig owns.
        unsafe { self.memory.as_ptr().add(index).read_volatile() }
    }

    fn set(&mut self, index: usize, value: u64) {
        // SAFETY: `index` is below 1024, the words that the rig owns.
        unsafe { self.memory.as_mut_ptr().add(index).write_volatile(value) };
    }

    fn sge(&self, index: usize, words: usize) -> ibv_sge {
        ibv_sge { addr: self.addr(index), length: (words * 8) as u32, lkey: self.lkey() }
    }

    fn init_attr(&self, qp_type: c_int) -> ibv_qp_init_attr {
        let cap = ibv_qp_cap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 64 };
        ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: null_mut(),
            cap,
            qp_type,
            sq_sig_all: 0,
        }
    }

    fn qp(&self, qp_type: c_int) -> *mut ibv_qp {
        // SAFETY: the rig keeps the domain alive; the structure is a local variable.
        let qp = unsafe { ibv_create_qp(self.pd, &mut self.init_attr(qp_type)) };
        assert!(!qp.is_null());
        qp
    }

    /// Returns attributes of a QP with the `ibv_wr_*` interface.
    fn init_ex(&self, qp_type: c_int) -> ibv_qp_init_attr_ex {
        let base = ibv_qp_init_attr_ex::of(&self.init_attr(qp_type), 1 | 1 << 6, self.pd);
        ibv_qp_init_attr_ex { send_ops_flags: 0x3ff, ..base }
    }

    /// Returns a QP with the `ibv_wr_*` interface.
    fn qp_ex(&self, qp_type: c_int) -> *mut ibv_qp {
        let mut init = self.init_ex(qp_type);
        // SAFETY: the rig keeps the context alive; the structure is a local variable.
        let qp = unsafe { create_qp_ex(self.context, &raw mut init) };
        assert!(!qp.is_null());
        qp
    }

    /// Returns two connected RC QPs.
    fn rc_pair(&self) -> [*mut ibv_qp; 2] {
        let pair = [self.qp(RC), self.qp(RC)];
        connect(pair[0], qp_num(pair[1]));
        connect(pair[1], qp_num(pair[0]));
        pair
    }

    /// Returns a UD QP in RTS.
    fn ud(&self) -> *mut ibv_qp {
        let qp = self.qp(UD);
        ud_to_rts(qp);
        qp
    }

    fn post_send(&self, qp: *mut ibv_qp, wr: &mut ibv_send_wr) -> (c_int, *mut ibv_send_wr) {
        let mut bad = null_mut();
        // SAFETY: the test keeps the QP and the list alive during the call.
        let rc = unsafe { self.ops().post_send.unwrap()(qp, wr, &raw mut bad) };
        (rc, bad)
    }

    fn post_recv(&self, qp: *mut ibv_qp, wr_id: u64, sges: &[ibv_sge]) -> c_int {
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: sges.as_ptr(), num_sge: sges.len() as c_int };
        let mut bad = null_mut();
        // SAFETY: the test keeps the QP alive; the list is one local variable.
        unsafe { self.ops().post_recv.unwrap()(qp, &raw mut wr, &raw mut bad) }
    }

    /// Returns the next `count` completions, in order.
    fn completions(&self, count: usize) -> Vec<ibv_wc> {
        let deadline = Instant::now() + TIMEOUT;
        let mut found = vec![];
        while found.len() < count {
            assert!(Instant::now() < deadline, "{} of {count} completions arrived", found.len());
            let mut wc = ibv_wc::default();
            // SAFETY: the rig keeps the CQ alive; the entry is a local variable.
            let n = unsafe { self.ops().poll_cq.unwrap()(self.cq, 1, &raw mut wc) };
            assert!(n >= 0);
            found.extend((n == 1).then_some(wc));
        }
        found
    }

    /// Waits for an asynchronous event of this kind; acknowledges it and earlier ones.
    fn async_event(&self, kind: c_int) -> async_element {
        let mut event = ibv_async_event { element: async_element { port_num: 0 }, event_type: -1 };
        while event.event_type != kind {
            // SAFETY: the rig keeps the context alive.
            assert!(is_readable(unsafe { (*self.context).async_fd }, TIMEOUT), "event {kind} does not arrive");
            // SAFETY: the rig keeps the context alive; the structure is a local variable.
            unsafe {
                assert_eq!(ibv_get_async_event(self.context, &raw mut event), 0);
                ibv_ack_async_event(&raw mut event);
            }
        }
        event.element
    }

    fn ah(&self) -> *mut ibv_ah {
        // SAFETY: the rig keeps the domain alive; the structure is a local variable.
        let ah = unsafe { ibv_create_ah(self.pd, &mut loopback()) };
        assert!(!ah.is_null());
        ah
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // SAFETY: the rig owns the handles; the tests have destroyed the objects that used them.
        unsafe {
            assert_eq!(ibv_destroy_cq(self.cq), 0);
            assert_eq!(ibv_destroy_comp_channel(self.channel), 0);
            assert_eq!(ibv_dereg_mr(self.mr), 0);
            assert_eq!(ibv_dealloc_pd(self.pd), 0);
            assert_eq!(ibv_close_device(self.context), 0);
        }
    }
}

/// Returns the path to 127.0.0.1, the first entry of the loopback device.
fn loopback() -> ibv_ah_attr {
    let raw = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1];
    let grh = ibv_global_route { dgid: ibv_gid { raw }, hop_limit: 64, ..ibv_global_route::default() };
    ibv_ah_attr { grh, is_global: 1, port_num: 1, ..ibv_ah_attr::default() }
}

fn qp_num(qp: *mut ibv_qp) -> u32 {
    // SAFETY: the test keeps the QP alive.
    unsafe { (*qp).qp_num }
}

fn state(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the test keeps the QP alive.
    unsafe { (*qp).state }
}

fn modify(qp: *mut ibv_qp, mut attr: ibv_qp_attr, mask: c_int) {
    // SAFETY: the test keeps the QP alive; the structure is a local variable.
    let rc = unsafe { ibv_modify_qp(qp, &raw mut attr, mask) };
    assert_eq!(rc, 0, "to state {}", attr.qp_state);
    assert_eq!(state(qp), attr.qp_state);
}

/// Returns true if a descriptor becomes readable in time.
fn is_readable(fd: c_int, timeout: Duration) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: `poll` is one entry.
    unsafe { libc::poll(&raw mut poll, 1, timeout.as_millis() as c_int) == 1 }
}

/// Returns all attributes of a QP.
fn query(qp: *mut ibv_qp) -> ibv_qp_attr {
    let (mut attr, mut init) = (ibv_qp_attr::default(), MaybeUninit::uninit());
    // SAFETY: the test keeps the QP alive; the structures are local variables.
    assert_eq!(unsafe { ibv_query_qp(qp, &raw mut attr, 0, init.as_mut_ptr()) }, 0);
    attr
}

/// Moves a UD QP from RESET to RTS.
fn ud_to_rts(qp: *mut ibv_qp) {
    let attr = ibv_qp_attr { qp_state: INIT, port_num: 1, qkey: QKEY, ..ibv_qp_attr::default() };
    modify(qp, attr, STATE | mask::PKEY_INDEX | mask::PORT | mask::QKEY);
    modify(qp, ibv_qp_attr { qp_state: RTR, ..ibv_qp_attr::default() }, STATE);
    modify(qp, ibv_qp_attr { qp_state: RTS, ..ibv_qp_attr::default() }, STATE | mask::SQ_PSN);
}

/// Moves an RC QP from RESET to RTS.
fn connect(qp: *mut ibv_qp, peer: u32) {
    connect_as(qp, connect_attr(peer));
}

/// Moves an RC QP from RESET to RTS with these attributes.
fn connect_as(qp: *mut ibv_qp, attr: ibv_qp_attr) {
    to_rtr(qp, attr);
    modify(qp, ibv_qp_attr { qp_state: RTS, ..attr }, TO_RTS);
}

/// Moves an RC QP from RESET to RTR.
fn to_rtr(qp: *mut ibv_qp, attr: ibv_qp_attr) {
    modify(qp, ibv_qp_attr { qp_state: INIT, ..attr }, TO_INIT);
    modify(qp, ibv_qp_attr { qp_state: RTR, ..attr }, TO_RTR);
}

/// Returns attributes that connect an RC QP to `peer`.
fn connect_attr(peer: u32) -> ibv_qp_attr {
    ibv_qp_attr {
        path_mtu: 3,
        dest_qp_num: peer,
        rq_psn: 7,
        sq_psn: 7,
        qp_access_flags: ALL_ACCESS.cast_unsigned(),
        ah_attr: loopback(),
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        port_num: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..ibv_qp_attr::default()
    }
}

/// Returns a signaled request for memory of the peer.
fn rdma_wr(wr_id: u64, opcode: u32, sges: &[ibv_sge], remote_addr: u64, rkey: u32) -> ibv_send_wr {
    ibv_send_wr { wr: wr_union { rdma: wr_rdma { remote_addr, rkey } }, ..send_wr(wr_id, opcode, sges) }
}

/// Returns a signaled send work request without a successor.
fn send_wr(wr_id: u64, opcode: u32, sges: &[ibv_sge]) -> ibv_send_wr {
    ibv_send_wr {
        wr_id,
        next: null_mut(),
        sg_list: sges.as_ptr(),
        num_sge: sges.len() as c_int,
        opcode,
        send_flags: 2,
        imm_data: 0,
        wr: wr_union { atomic: wr_atomic { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 } },
        remote_srqn: 0,
        bind_mw: wr_bind_mw { mw: null_mut(), rkey: 0, bind_info: no_window() },
    }
}

/// Returns a binding of no bytes.
fn no_window() -> ibv_mw_bind_info {
    ibv_mw_bind_info { mr: null_mut(), addr: 0, length: 0, mw_access_flags: 0 }
}

fn destroy(qps: &[*mut ibv_qp]) {
    for &qp in qps {
        // SAFETY: the caller created the QPs and does not use them afterwards.
        assert_eq!(unsafe { ibv_destroy_qp(qp) }, 0);
    }
}

fn destroy_ah(ah: *mut ibv_ah) {
    // SAFETY: the test created the handle and does not use it afterwards.
    assert_eq!(unsafe { ibv_destroy_ah(ah) }, 0);
}

/// Returns a pointer that is no handle of the library.
fn foreign<T>() -> *mut T {
    ptr::without_provenance_mut(0x1000)
}

/// Returns attributes of an extended CQ with these fields.
fn extended_cq(cqe: u32, wc_flags: u64) -> ibv_cq_init_attr_ex {
    ibv_cq_init_attr_ex {
        cqe,
        cq_context: null_mut(),
        channel: null_mut(),
        comp_vector: 0,
        wc_flags,
        comp_mask: 0,
        flags: 0,
        parent_domain: null_mut(),
    }
}
