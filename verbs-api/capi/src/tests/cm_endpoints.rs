//! Synchronous endpoints, used as librdmacm's examples `rdma_server` and `rdma_client` do, and the
//! CQs and the SRQ that an identifier has by default.

use super::cm_addresses::{Found, find, hints};
use super::cm_events::*;
use super::*;
use crate::event::{ibv_ack_cq_events, ibv_get_cq_event};
use crate::rdmacm::*;

const RAI_PASSIVE: c_int = 1;

/// Returns address information for a port of the loopback interface.
fn loopback_addrinfo(flags: c_int, port: u16, ps: c_int) -> Found {
    let port = std::ffi::CString::new(port.to_string()).unwrap();
    find(Some(c"127.0.0.1"), Some(&port), Some(&rdma_addrinfo { ai_flags: flags, ai_port_space: ps, ..hints() }))
        .unwrap()
}

fn endpoint(found: &Found, mut init: ibv_qp_init_attr) -> *mut rdma_cm_id {
    let mut id = null_mut();
    // SAFETY: `found` keeps the list alive; the others are local variables.
    let rc = unsafe { rdma_create_ep(&raw mut id, found.0, null_mut(), &raw mut init) };
    assert_eq!(rc, 0, "errno {}", errno());
    id
}

/// Returns a synchronous listener whose requests get queue pairs.
fn listener() -> (*mut rdma_cm_id, u16) {
    let id = endpoint(&loopback_addrinfo(RAI_PASSIVE, 0, TCP), small_qp(RC));
    // SAFETY: `endpoint` made the identifier; nothing has destroyed it.
    unsafe {
        assert_eq!(rdma_listen(id, 0), 0);
        (id, u16::from_be(rdma_get_src_port(id)))
    }
}

fn next_request(listener: *mut rdma_cm_id) -> *mut rdma_cm_id {
    let mut id = null_mut();
    // SAFETY: the test keeps the listener alive; the pointer is to a local variable.
    assert_eq!(unsafe { rdma_get_request(listener, &raw mut id) }, 0, "errno {}", errno());
    id
}

/// Waits for a completion like `rdma_get_recv_comp` and `rdma_get_send_comp`.
fn completion(id: *mut rdma_cm_id, cq: *mut ibv_cq, channel: *mut ibv_comp_channel) -> ibv_wc {
    let (mut wc, mut from, mut context) = (ibv_wc::default(), null_mut(), null_mut());
    // SAFETY: the caller keeps the handles alive; the pointers are to local variables.
    unsafe {
        let ops = &(*(*cq).context).ops;
        loop {
            if ops.poll_cq.unwrap()(cq, 1, &raw mut wc) == 1 {
                return wc;
            }
            assert_eq!(ops.req_notify_cq.unwrap()(cq, 0), 0);
            if ops.poll_cq.unwrap()(cq, 1, &raw mut wc) == 1 {
                return wc;
            }
            assert_eq!(ibv_get_cq_event(channel, &raw mut from, &raw mut context), 0);
            assert_eq!((from, context), (cq, id.cast()));
            ibv_ack_cq_events(cq, 1);
        }
    }
}

/// Eight bytes of memory, registered in the domain of an identifier.
struct Message {
    memory: Box<u64>,
    mr: *mut ibv_mr,
}

impl Message {
    fn new(id: *mut rdma_cm_id, value: u64) -> Self {
        let mut memory = Box::new(value);
        // SAFETY: the identifier keeps its domain; `memory` moves into this value, and its block
        // stays where it is.
        let mr = unsafe { ibv_reg_mr(read(id).pd, (&raw mut *memory).cast(), 8, ALL_ACCESS) };
        assert!(!mr.is_null());
        Self { memory, mr }
    }

    fn sge(&self) -> ibv_sge {
        // SAFETY: this value keeps the region registered.
        ibv_sge { addr: (&raw const *self.memory).addr() as u64, length: 8, lkey: unsafe { (*self.mr).lkey } }
    }

    fn post_send(&self, id: *mut rdma_cm_id) {
        let sge = [self.sge()];
        let (mut wr, mut bad) = (send_wr(1, SEND, &sge), null_mut());
        let qp = read(id).qp;
        // SAFETY: the identifier has a QP as long as the test keeps it; the structure is a local
        // variable.
        unsafe { assert_eq!((*(*qp).context).ops.post_send.unwrap()(qp, &raw mut wr, &raw mut bad), 0) };
    }

    fn post_recv(&self, id: *mut rdma_cm_id) {
        let sge = self.sge();
        let (mut wr, mut bad) =
            (ibv_recv_wr { wr_id: 2, next: null_mut(), sg_list: &raw const sge, num_sge: 1 }, null_mut());
        let qp = read(id).qp;
        // SAFETY: the identifier has a QP as long as the test keeps it; the structure is a local
        // variable.
        unsafe { assert_eq!((*(*qp).context).ops.post_recv.unwrap()(qp, &raw mut wr, &raw mut bad), 0) };
    }

    fn value(self) -> u64 {
        // SAFETY: this value owns the region and the memory.
        unsafe {
            assert_eq!(ibv_dereg_mr(self.mr), 0);
            (&raw const *self.memory).read_volatile()
        }
    }
}

fn client(port: u16) {
    let id = endpoint(&loopback_addrinfo(0, port, TCP), small_qp(RC));
    let (question, answer) = (Message::new(id, 6), Message::new(id, 0));
    answer.post_recv(id);
    connect_id(id, None);
    assert_eq!((event_of(id), qp_state(id)), (ESTABLISHED, RTS));
    question.post_send(id);
    let now = read(id);
    assert_eq!(completion(id, now.send_cq, now.send_cq_channel).status, 0);
    assert_eq!(completion(id, now.recv_cq, now.recv_cq_channel).byte_len, 8);
    assert_eq!((question.value(), answer.value()), (6, 42));
    // SAFETY: the test keeps the identifier alive.
    unsafe {
        assert_eq!(rdma_disconnect(id), 0);
        rdma_destroy_ep(id);
    }
}

/// Returns the kind of the event that a synchronous call left.
fn event_of(id: *mut rdma_cm_id) -> c_int {
    // SAFETY: the test keeps the identifier alive; a synchronous call leaves an event in it.
    unsafe { (*read(id).event).event }
}

#[test]
fn synchronous_endpoints_exchange_messages() {
    let (listen, port) = listener();
    let client = std::thread::spawn(move || client(port));
    let id = next_request(listen);
    assert_eq!(event_of(id), CONNECT_REQUEST);
    assert!(!read(id).qp.is_null() && read(id).channel != read(listen).channel);
    let (question, answer) = (Message::new(id, 0), Message::new(id, 42));
    question.post_recv(id);
    accept(id, None);
    assert_eq!((event_of(id), qp_state(id)), (ESTABLISHED, RTS));
    let now = read(id);
    assert_eq!(completion(id, now.recv_cq, now.recv_cq_channel).byte_len, 8);
    answer.post_send(id);
    assert_eq!(completion(id, now.send_cq, now.send_cq_channel).status, 0);
    assert_eq!((question.value(), answer.value()), (6, 42));
    // SAFETY: the test keeps both identifiers alive.
    unsafe {
        assert_eq!(rdma_disconnect(id), 0);
        rdma_destroy_ep(id);
        rdma_destroy_ep(listen);
    }
    client.join().unwrap();
}

#[test]
fn rejected_synchronous_connect_is_econnrefused() {
    let (listen, port) = listener();
    let client = std::thread::spawn(move || {
        let id = endpoint(&loopback_addrinfo(0, port, TCP), small_qp(RC));
        // SAFETY: the test keeps the identifier alive.
        let refused = unsafe { (rdma_connect(id, null_mut()), errno()) };
        assert_eq!((refused, event_of(id)), ((-1, libc::ECONNREFUSED), REJECTED));
        // SAFETY: this thread created the identifier and does not use it afterwards.
        unsafe { rdma_destroy_ep(id) };
    });
    let id = next_request(listen);
    // SAFETY: the test keeps both identifiers alive.
    unsafe {
        assert_eq!(rdma_reject(id, ptr::null(), 0), 0);
        assert!(read(id).event.is_null());
        rdma_destroy_ep(id);
        rdma_destroy_ep(listen);
    }
    client.join().unwrap();
}

#[test]
fn ai_connect_data_precedes_private_data() {
    let cm = CmChannel::new();
    let (listener, port) = cm.listener(TCP);
    let found = loopback_addrinfo(0, port, TCP);
    // SAFETY: `calloc` gives a block of 4 bytes, which the library frees with the list.
    unsafe {
        (*found.0).ai_connect = libc::calloc(1, 4);
        (*found.0).ai_connect.cast::<[u8; 4]>().write(*b"data");
        (*found.0).ai_connect_len = 4;
    }
    let id = endpoint(&found, small_qp(RC));
    // SAFETY: this test keeps the identifier and the channel alive.
    assert_eq!(unsafe { rdma_migrate_id(id, cm.channel) }, 0);
    connect_id(id, Some(&with_data(b" and more")));
    let request = cm.expect(CONNECT_REQUEST);
    assert_eq!(&request.data()[..14], b"data and more\0");
    let passive = request.id;
    drop(request);
    cm.destroy_ids(&[id, passive, listener]);
}

#[test]
fn get_request_needs_a_synchronous_listener() {
    let cm = CmChannel::new();
    let (listener, _) = cm.listener(TCP);
    let mut id = null_mut();
    // SAFETY: the test keeps the listener alive; the pointer is to a local variable.
    assert_eq!((unsafe { rdma_get_request(listener, &raw mut id) }, errno()), (-1, libc::EINVAL));
    cm.destroy_ids(&[listener]);
}

#[test]
fn passive_endpoint_is_bound() {
    let (mut id, rai) = (null_mut(), loopback_addrinfo(RAI_PASSIVE, 0, UDP));
    // SAFETY: `rai` keeps the list alive; `id` is a local variable.
    unsafe {
        assert_eq!(rdma_create_ep(&raw mut id, rai.0, null_mut(), null_mut()), 0);
        assert_ne!(rdma_get_src_port(id), 0);
        assert_eq!((read(id).qp_type, read(id).port_num), (UD, 1));
        assert!(read(id).qp.is_null() && !read(id).pd.is_null());
        rdma_destroy_ep(id);
    }
}

/// Returns an identifier that is bound to the device.
fn bound(cm: &CmChannel) -> *mut rdma_cm_id {
    let id = cm.id(TCP);
    // SAFETY: the test keeps the identifier alive; the address is a local variable.
    assert_eq!(unsafe { rdma_bind_addr(id, loopback_port(0).as_mut_ptr()) }, 0);
    id
}

#[test]
fn default_cqs_live_as_long_as_the_qp() {
    let cm = CmChannel::new();
    let id = bound(&cm);
    let mut init = small_qp(RC);
    // SAFETY: this test keeps the identifier alive; the structures are its variables.
    unsafe {
        assert_eq!(rdma_create_qp(id, null_mut(), &raw mut init), 0);
        let now = read(id);
        assert_eq!((init.send_cq, init.recv_cq), (now.send_cq, now.recv_cq));
        assert_eq!(init.cap.max_inline_data, 16, "the least inline data of a queue pair");
        assert!(init.cap.max_send_wr >= 4 && !now.send_cq.is_null() && now.send_cq != now.recv_cq);
        assert_eq!(((*now.recv_cq).channel, (*now.recv_cq).cq_context), (now.recv_cq_channel, id.cast()));
        assert_eq!((rdma_create_qp(id, null_mut(), &raw mut init), errno()), (-1, libc::EINVAL), "it has a queue pair");
        rdma_destroy_qp(id);
        let now = read(id);
        assert!(now.qp.is_null() && now.send_cq.is_null() && now.recv_cq.is_null());
        assert!(now.send_cq_channel.is_null() && now.recv_cq_channel.is_null());
        assert_eq!(rdma_create_qp(id, null_mut(), &mut small_qp(RC)), 0, "again after its destruction");
    }
    cm.destroy_ids(&[id]);
}

#[test]
fn cqs_of_the_program_are_used_and_kept() {
    let cm = CmChannel::new();
    let id = bound(&cm);
    let now = read(id);
    // SAFETY: this test keeps the handles alive; the structures are its variables.
    unsafe {
        let cq = ibv_create_cq(now.verbs, 4, null_mut(), null_mut(), 0);
        let pd = ibv_alloc_pd(now.verbs);
        let mut init = ibv_qp_init_attr { send_cq: cq, recv_cq: cq, ..small_qp(RC) };
        assert_eq!(rdma_create_qp(id, pd, &raw mut init), 0);
        assert!(read(id).send_cq.is_null() && read(id).recv_cq_channel.is_null() && read(id).pd == pd);
        rdma_destroy_qp(id);
        assert_eq!((ibv_destroy_cq(cq), ibv_dealloc_pd(pd)), (0, 0));
    }
    cm.destroy_ids(&[id]);
}

#[test]
fn pd_of_another_context_is_refused() {
    let (cm, rig) = (CmChannel::new(), Rig::new());
    let id = bound(&cm);
    let mut srq =
        ibv_srq_init_attr { srq_context: null_mut(), attr: ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 } };
    // SAFETY: this test keeps the handles alive; the structures are its variables.
    unsafe {
        assert_eq!((rdma_create_qp(id, rig.pd, &mut small_qp(RC)), errno()), (-1, libc::EINVAL));
        assert_eq!((rdma_create_srq(id, rig.pd, &raw mut srq), errno()), (-1, libc::EINVAL));
    }
    assert!(read(id).send_cq.is_null() && read(id).srq.is_null());
    cm.destroy_ids(&[id]);
}

#[test]
fn srq_of_the_id_serves_its_qp() {
    let cm = CmChannel::new();
    let id = bound(&cm);
    let mut srq =
        ibv_srq_init_attr { srq_context: null_mut(), attr: ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 } };
    // SAFETY: this test keeps the identifier alive; the structures are its variables.
    unsafe {
        assert_eq!(rdma_create_srq(id, null_mut(), &raw mut srq), 0);
        assert!(srq.attr.max_wr >= 4 && !read(id).srq.is_null());
        assert_eq!((rdma_create_srq(id, null_mut(), &raw mut srq), errno()), (-1, libc::EINVAL), "it has an SRQ");
        create_qp(id);
        assert_eq!((*read(id).qp).srq, read(id).srq);
        rdma_destroy_qp(id);
        rdma_destroy_srq(id);
    }
    assert!(read(id).srq.is_null() && read(id).recv_cq.is_null());
    cm.destroy_ids(&[id]);
}

#[test]
fn xrc_target_uses_the_default_xrc_domain() {
    const XRC_RECV: c_int = 10;
    let wanted = rdma_addrinfo { ai_qp_type: XRC_RECV, ai_port_space: 0x13f, ai_flags: RAI_PASSIVE, ..hints() };
    let rai = find(Some(c"127.0.0.1"), Some(c"0"), Some(&wanted)).unwrap();
    let mut id = null_mut();
    let mut srq =
        ibv_srq_init_attr { srq_context: null_mut(), attr: ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 } };
    let mut number = 0;
    // SAFETY: `rai` keeps the list alive; the others are variables of this test.
    unsafe {
        assert_eq!(rdma_create_ep(&raw mut id, rai.0, null_mut(), null_mut()), 0, "errno {}", errno());
        assert_eq!(rdma_create_srq(id, null_mut(), &raw mut srq), 0);
        assert_eq!(crate::srq::get_srq_num(read(id).srq, &raw mut number), 0);
        assert!(!read(id).recv_cq.is_null());
        assert_eq!(rdma_create_qp(id, null_mut(), &mut small_qp(XRC_RECV)), 0, "errno {}", errno());
        rdma_destroy_ep(id);
    }
    assert_ne!(number, 0);
}
