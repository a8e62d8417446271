//! Tag matching: an SRQ with tags, operations on tags, and completions on the extended CQ.

use super::*;
use crate::cq::create_cq_ex;
use crate::srq::create_srq_ex;
use crate::srq::ibv_destroy_srq;
use std::collections::VecDeque;

/// `IBV_WC_STANDARD_FLAGS` and `IBV_WC_EX_WITH_TM_INFO`.
const WC_FLAGS: u64 = 0x7f | 1 << 10;
const TM_ADD: u32 = 130;
const TM_DEL: u32 = 131;
const TM_SYNC: u32 = 132;
const TM_RECV: u32 = 133;
const TM_NO_TAG: u32 = 134;
const SYNC_REQ: u32 = 1 << 4;
const MATCH: u32 = 1 << 5;
const DATA_VALID: u32 = 1 << 6;
const SIGNALED: c_int = 1;
const HANDLED: c_int = 2;

/// An extended CQ, an SRQ that completes there, and a connection whose second end uses the SRQ.
struct TagRig {
    rig: Rig,
    cq: *mut ibv_cq_ex,
    srq: *mut ibv_srq,
    qps: [*mut ibv_qp; 2],
}

/// Operation, `wr_id`, flags, tag, user data, bytes, status.
type Entry = (u32, u64, u32, u64, u32, u32, u32);

fn extended(rig: &Rig) -> *mut ibv_cq_ex {
    let mut attr = extended_cq(64, WC_FLAGS);
    // SAFETY: the rig keeps the context alive; the structure is a local variable.
    let cq = unsafe { create_cq_ex(rig.context, &raw mut attr) };
    assert!(!cq.is_null());
    cq
}

fn srq(rig: &Rig, cq: *mut ibv_cq, tm_cap: [u32; 2]) -> *mut ibv_srq {
    let attr = ibv_srq_attr { max_wr: 8, max_sge: 1, srq_limit: 0 };
    let (srq_context, pd, xrcd) = (null_mut(), rig.pd, null_mut());
    let mut init = ibv_srq_init_attr_ex { srq_context, attr, comp_mask: 0x1b, srq_type: 2, pd, xrcd, cq, tm_cap };
    // SAFETY: the rig keeps the context alive; the structure is a local variable.
    unsafe { create_srq_ex(rig.context, &raw mut init) }
}

impl TagRig {
    fn new() -> Self {
        let rig = Rig::new();
        let cq = extended(&rig);
        let srq = srq(&rig, cq.cast(), [4, 8]);
        assert!(!srq.is_null());
        let mut init = rig.init_attr(RC);
        (init.srq, init.cap) = (srq, ibv_qp_cap::default());
        // SAFETY: the rig keeps the domain alive; the structure is a local variable.
        let qps = [rig.qp(RC), unsafe { ibv_create_qp(rig.pd, &raw mut init) }];
        assert!(!qps[1].is_null());
        connect(qps[0], qp_num(qps[1]));
        connect(qps[1], qp_num(qps[0]));
        Self { rig, cq, srq, qps }
    }

    /// Posts an operation; returns the handle of a new tag, or the error.
    fn post(&self, mut wr: ibv_ops_wr) -> Result<u32, c_int> {
        let mut bad = null_mut();
        // SAFETY: `self` keeps the SRQ alive; the list is one local variable.
        let rc = unsafe { crate::srq::post_srq_ops(self.srq, &raw mut wr, &raw mut bad) };
        match rc {
            0 => Ok(wr.tm.handle),
            rc => {
                assert_eq!(bad, &raw mut wr);
                Err(rc)
            }
        }
    }

    /// Posts a tag whose message goes to the word at `index`.
    fn add(&self, wr_id: u64, tag: u64, index: usize) -> Result<u32, c_int> {
        let sges = [self.rig.sge(index, 1)];
        let add = ops_tm_add { recv_wr_id: wr_id + 100, sg_list: sges.as_ptr(), num_sge: 1, tag, mask: u64::MAX };
        self.post(tag_op(wr_id, 0, ops_tm { unexpected_cnt: 0, handle: 0, add }))
    }

    /// Sends the `words` from `index` on.
    fn send(&self, index: usize, words: usize) {
        let sges = [self.rig.sge(index, words)];
        assert_eq!(self.rig.post_send(self.qps[0], &mut send_wr(7, SEND, &sges)).0, 0);
        assert_eq!(self.rig.completions(1)[0].status, 0);
    }

    /// Returns the next entries of the extended CQ.
    fn completions(&self, count: usize) -> VecDeque<Entry> {
        let deadline = Instant::now() + TIMEOUT;
        let mut found = VecDeque::new();
        while found.len() < count {
            assert!(Instant::now() < deadline, "{} of {count} completions arrived", found.len());
            found.extend(self.poll());
        }
        found
    }

    fn poll(&self) -> Option<Entry> {
        let cq = self.cq;
        let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
        let mut info = ibv_wc_tm_info { tag: 1, priv_: 1 };
        // SAFETY: `self` keeps the CQ alive, and this function calls it in the order of the man
        // page.
        unsafe {
            if (*cq).start_poll?(cq, &raw mut attr) != 0 {
                return None;
            }
            (*cq).read_tm_info?(cq, &raw mut info);
            let (opcode, flags) = ((*cq).read_opcode?(cq), (*cq).read_wc_flags?(cq));
            let bytes = (*cq).read_byte_len?(cq);
            let entry = (opcode, (*cq).wr_id, flags, info.tag, info.priv_, bytes, (*cq).status);
            (*cq).end_poll?(cq);
            Some(entry)
        }
    }

    fn receive(&self, wr_id: u64, index: usize, words: usize) {
        let sges = [self.rig.sge(index, words)];
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: sges.as_ptr(), num_sge: 1 };
        // SAFETY: the test keeps the SRQ alive; the list is one local variable.
        assert_eq!(unsafe { self.rig.ops().post_srq_recv.unwrap()(self.srq, &raw mut wr, null_mut()) }, 0);
    }

    fn destroy(self) {
        destroy(&self.qps);
        // SAFETY: `self` owns the objects, and nothing uses them afterwards.
        unsafe {
            assert_eq!(ibv_destroy_cq(self.cq.cast()), libc::EBUSY);
            assert_eq!(ibv_destroy_srq(self.srq), 0);
            assert_eq!(ibv_destroy_cq(self.cq.cast()), 0);
        }
    }
}

fn tag_op(wr_id: u64, opcode: c_int, tm: ops_tm) -> ibv_ops_wr {
    ibv_ops_wr { wr_id, next: null_mut(), opcode, flags: SIGNALED | HANDLED, tm }
}

/// Returns an operation without a list: `handle` for a removal, `unexpected_cnt` for a
/// synchronisation.
fn op_without_list(wr_id: u64, opcode: c_int, handle: u32, unexpected_cnt: u32) -> ibv_ops_wr {
    let add = ops_tm_add { recv_wr_id: 0, sg_list: ptr::null(), num_sge: 0, tag: 0, mask: 0 };
    tag_op(wr_id, opcode, ops_tm { unexpected_cnt, handle, add })
}

/// Returns the two words of a tag-matching header.
fn header(operation: u8, user: u32, tag: u64) -> [u64; 2] {
    let [a, b, c, d] = user.to_be_bytes();
    [u64::from_ne_bytes([operation, 0, 0, 0, a, b, c, d]), tag.to_be()]
}

impl TagRig {
    /// Writes words from `index` on.
    fn set(&mut self, index: usize, words: &[u64]) {
        words.iter().enumerate().for_each(|(at, word)| self.rig.set(index + at, *word));
    }
}

// clause: TM-QUEUE
#[test]
fn tagged_messages_complete_on_the_cq_of_the_srq() {
    let mut tags = TagRig::new();
    let handle = tags.add(1, 5, 200).unwrap();
    tags.add(2, 6, 201).unwrap();
    tags.set(0, &header(3, 77, 6));
    tags.set(2, &[42]);
    tags.send(0, 3);
    let expected =
        [(TM_ADD, 1, 0, 0, 0, 0, 0), (TM_ADD, 2, 0, 0, 0, 0, 0), (TM_RECV, 102, MATCH | DATA_VALID, 6, 77, 8, 0)];
    assert_eq!(tags.completions(3), expected);
    assert_eq!(tags.rig.word(201), 42);

    tags.receive(50, 300, 3);
    tags.send(0, 3);
    tags.add(3, 6, 202).unwrap();
    assert_eq!(tags.completions(2), [(TM_RECV, 50, 0, 0, 0, 24, 0), (TM_ADD, 3, SYNC_REQ, 0, 0, 0, 0)]);
    assert_eq!(
        [300, 301, 302].map(|at| tags.rig.word(at)),
        [0, 1, 2].map(|at| tags.rig.word(at)),
        "an unexpected message keeps its header"
    );
    tags.post(op_without_list(4, 2, 0, 1)).unwrap();
    tags.post(op_without_list(5, 1, handle, 1)).unwrap();
    tags.post(op_without_list(6, 1, handle, 1)).unwrap();
    let expected = [(TM_SYNC, 4, 0, 0, 0, 0, 0), (TM_DEL, 5, 0, 0, 0, 0, 0), (TM_DEL, 6, 0, 0, 0, 0, 22)];
    assert_eq!(tags.completions(3), expected);

    tags.receive(51, 300, 3);
    tags.set(0, &header(0, 0, 6));
    tags.send(0, 3);
    assert_eq!(tags.completions(1), [(TM_NO_TAG, 51, 0, 0, 0, 24, 0)]);
    tags.destroy();
}

// clause: TM-RENDEZVOUS
#[test]
fn rendezvous_data_is_read_by_the_device() {
    let mut tags = TagRig::new();
    tags.add(1, 9, 200).unwrap();
    tags.set(0, &header(1, 3, 9));
    let lengths = u64::from(tags.rig.rkey()) << 32 | 8;
    let place = tags.rig.addr(100).to_be();
    tags.set(2, &[place, lengths.to_be()]);
    tags.set(100, &[4711]);
    assert_eq!(tags.rig.post_recv(tags.qps[0], 8, &[tags.rig.sge(400, 2)]), 0);
    tags.send(0, 4);
    let both = [(TM_RECV, 101, MATCH, 9, 3, 0, 0), (TM_RECV, 101, DATA_VALID, 0, 0, 8, 0)];
    assert_eq!(tags.completions(3).into_iter().skip(1).collect::<Vec<_>>(), both);
    assert_eq!(tags.rig.word(200), 4711);
    let fin = tags.rig.completions(1)[0];
    assert_eq!((fin.wr_id, fin.opcode, fin.byte_len, fin.wc_flags), (8, 128, 16, 0));
    assert_eq!([tags.rig.word(400), tags.rig.word(401)], header(2, 3, 9));
    tags.destroy();
}

// clause: TM-QUEUE
#[test]
fn tag_operations_need_a_tag_srq() {
    let tags = TagRig::new();
    let refused = |cq, tm_cap| {
        assert!(srq(&tags.rig, cq, tm_cap).is_null());
        assert_eq!(errno(), libc::EINVAL);
    };
    refused(tags.rig.cq, [1, 1]);
    refused(null_mut(), [1, 1]);
    refused(tags.cq.cast(), [0, 1]);
    let mut init = tags.rig.init_attr(UD);
    init.srq = tags.srq;
    // SAFETY: the rig keeps the domain alive; the structure is a local variable.
    assert!(unsafe { ibv_create_qp(tags.rig.pd, &raw mut init) }.is_null());
    assert_eq!(errno(), libc::EINVAL);
    assert_eq!(tags.post(op_without_list(1, 3, 0, 0)), Err(libc::EINVAL));
    for wr_id in 0..4 {
        tags.add(wr_id, 5, 200).unwrap();
    }
    assert_eq!(tags.add(4, 5, 200), Err(libc::ENOMEM));
    tags.destroy();
}
