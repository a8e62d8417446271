//! Queue pairs that a program assigns to `rdma_cm_id.qp`, as dapl does: it creates the queue pair
//! with a spare identifier, and assigns it to the identifier of a request.

use super::cm_events::*;
use super::*;
use crate::rdmacm::*;

/// Assigns the queue pair of `from` to `to`, and destroys `from`.
fn assign_qp(from: *mut rdma_cm_id, to: *mut rdma_cm_id) {
    // SAFETY: the test keeps both identifiers alive, and no other thread uses them.
    unsafe {
        (*to).qp = (&raw mut (*from).qp).replace(null_mut());
        assert_eq!(rdma_destroy_id(from), 0);
    }
}

/// `IBV_WC_WR_FLUSH_ERR`.
const FLUSHED: u32 = 5;

/// Returns an identifier with a queue pair on the program's CQ, bound to the device.
fn id_with_spare_qp(cm: &CmChannel) -> *mut rdma_cm_id {
    let id = cm.id(TCP);
    // SAFETY: the test keeps the identifier alive; the address is a local variable.
    unsafe {
        assert_eq!(rdma_bind_addr(id, loopback_port(0).as_mut_ptr()), 0);
        let cq = ibv_create_cq(read(id).verbs, 16, null_mut(), null_mut(), 0);
        let mut init = ibv_qp_init_attr { send_cq: cq, recv_cq: cq, ..small_qp(RC) };
        assert_eq!(rdma_create_qp(id, null_mut(), &raw mut init), 0, "errno {}", errno());
    }
    id
}

/// Returns both identifiers of a connection whose passive queue pair was assigned.
fn connected_by_assignment(cm: &CmChannel, port: u16) -> (*mut rdma_cm_id, *mut rdma_cm_id) {
    let active = cm.id(TCP);
    cm.resolve(active, port);
    create_qp(active);
    let spare = id_with_spare_qp(cm);
    connect_id(active, None);
    let passive = cm.expect(CONNECT_REQUEST).id;
    assign_qp(spare, passive);
    accept(passive, None);
    cm.expect(ESTABLISHED);
    cm.expect(ESTABLISHED);
    (active, passive)
}

/// Destroys the identifiers of a connection and the CQ of the assigned queue pair.
fn destroy_ids_and_cq(cm: &CmChannel, ids: &[*mut rdma_cm_id], cq: *mut ibv_cq) {
    cm.destroy_ids(ids);
    // SAFETY: the caller created the CQ; the QP that used it is destroyed.
    assert_eq!(unsafe { ibv_destroy_cq(cq) }, 0);
}

fn cq_of(id: *mut rdma_cm_id) -> *mut ibv_cq {
    // SAFETY: the test keeps the QP of the identifier alive.
    unsafe { (*read(id).qp).recv_cq }
}

/// Disconnects `peer` once it has the event, and waits for the event of `id`.
fn expect_disconnected(cm: &CmChannel, peer: *mut rdma_cm_id, id: *mut rdma_cm_id) {
    assert_eq!(cm.expect(DISCONNECTED).id, peer);
    // SAFETY: the test keeps the identifier alive.
    assert_eq!(unsafe { rdma_disconnect(peer) }, 0);
    assert_eq!(cm.expect(DISCONNECTED).id, id);
}

#[test]
fn accept_moves_an_assigned_qp() {
    let cm = CmChannel::new();
    let (listener, port) = cm.listener(TCP);
    let (active, passive) = connected_by_assignment(&cm, port);
    for (id, peer) in [(active, passive), (passive, active)] {
        assert_eq!((qp_state(id), query(read(id).qp).dest_qp_num), (RTS, qp_num(read(peer).qp)));
    }
    let cq = cq_of(passive);
    destroy_ids_and_cq(&cm, &[active, passive, listener], cq);
}

#[test]
fn connect_moves_an_assigned_qp() {
    let cm = CmChannel::new();
    let (listener, port) = cm.listener(TCP);
    let active = cm.id(TCP);
    cm.resolve(active, port);
    assign_qp(id_with_spare_qp(&cm), active);
    connect_id(active, None);
    let request = cm.expect(CONNECT_REQUEST);
    let passive = request.id;
    assert_eq!(request.conn().qp_num, qp_num(read(active).qp));
    drop(request);
    create_qp(passive);
    accept(passive, None);
    cm.expect(ESTABLISHED);
    cm.expect(ESTABLISHED);
    assert_eq!((qp_state(active), qp_state(passive)), (RTS, RTS));
    let cq = cq_of(active);
    destroy_ids_and_cq(&cm, &[active, passive, listener], cq);
}

#[test]
fn qp_assigned_before_the_response_is_connected() {
    let cm = CmChannel::new();
    let (listener, port) = cm.listener(TCP);
    let active = cm.id(TCP);
    cm.resolve(active, port);
    let spare = id_with_spare_qp(&cm);
    connect_id(active, Some(&rdma_conn_param { qp_num: qp_num(read(spare).qp), ..with_data(b"") }));
    let passive = cm.expect(CONNECT_REQUEST).id;
    create_qp(passive);
    assign_qp(spare, active);
    accept(passive, None);
    assert_eq!([cm.expect(ESTABLISHED).id, cm.expect(ESTABLISHED).id], [active, passive]);
    assert_eq!((qp_state(active), qp_state(passive)), (RTS, RTS));
    let cq = cq_of(active);
    destroy_ids_and_cq(&cm, &[active, passive, listener], cq);
}

#[test]
fn disconnect_flushes_an_assigned_qp() {
    let cm = CmChannel::new();
    let (listener, port) = cm.listener(TCP);
    let (active, passive) = connected_by_assignment(&cm, port);
    let qp = read(passive).qp;
    let (mut wr, mut bad) = (ibv_recv_wr { wr_id: 7, next: null_mut(), sg_list: ptr::null(), num_sge: 0 }, null_mut());
    // SAFETY: this test keeps the identifier and its QP alive; the structure is a local variable.
    unsafe {
        assert_eq!((*(*qp).context).ops.post_recv.unwrap()(qp, &raw mut wr, &raw mut bad), 0);
        assert_eq!(rdma_disconnect(passive), 0);
    }
    assert_eq!(qp_state(passive), ERR);
    let (mut wc, cq) = (ibv_wc::default(), cq_of(passive));
    // SAFETY: this test keeps the CQ alive; `wc` is a local variable.
    assert_eq!(unsafe { (*(*cq).context).ops.poll_cq.unwrap()(cq, 1, &raw mut wc) }, 1);
    assert_eq!((wc.wr_id, wc.status), (7, FLUSHED));
    expect_disconnected(&cm, active, passive);
    let cq = cq_of(passive);
    destroy_ids_and_cq(&cm, &[active, passive, listener], cq);
}

#[test]
fn qp_removed_from_its_id_is_not_moved() {
    let cm = CmChannel::new();
    let (listener, port) = cm.listener(TCP);
    let (active, passive) = connected_by_assignment(&cm, port);
    let (qp, cq) = (read(passive).qp, cq_of(passive));
    // SAFETY: this test keeps the identifier alive; no call uses it meanwhile.
    unsafe {
        (*passive).qp = null_mut();
        assert_eq!(rdma_disconnect(passive), 0);
    }
    assert_eq!(state(qp), RTS, "the queue pair no longer belongs to the identifier");
    create_qp(passive);
    assert_eq!(qp_state(passive), INIT, "the identifier can create another queue pair");
    destroy(&[qp]);
    expect_disconnected(&cm, active, passive);
    destroy_ids_and_cq(&cm, &[active, passive, listener], cq);
}

#[test]
fn unmovable_qp_rejects_the_request() {
    let cm = CmChannel::new();
    let (listener, port) = cm.listener(TCP);
    let active = cm.id(TCP);
    cm.resolve(active, port);
    create_qp(active);
    let spare = id_with_spare_qp(&cm);
    let cq = cq_of(spare);
    modify(read(spare).qp, ibv_qp_attr { qp_state: ERR, ..ibv_qp_attr::default() }, STATE);
    connect_id(active, None);
    let passive = cm.expect(CONNECT_REQUEST).id;
    assign_qp(spare, passive);
    // SAFETY: the test keeps the identifier alive.
    assert_eq!(unsafe { (rdma_accept(passive, null_mut()), errno()) }, (-1, libc::EINVAL));
    assert_eq!(cm.expect(REJECTED).id, active);
    destroy_ids_and_cq(&cm, &[active, passive, listener], cq);
}

#[test]
fn stale_qp_pointer_counts_as_none() {
    let cm = CmChannel::new();
    let (listener, port) = cm.listener(TCP);
    let (active, passive) = connected_by_assignment(&cm, port);
    let cq = cq_of(passive);
    // Programs also use `ibv_destroy_qp`, which leaves the pointer in the identifier.
    destroy(&[read(passive).qp]);
    // SAFETY: the test keeps the identifier alive.
    assert_eq!(unsafe { rdma_disconnect(passive) }, 0);
    expect_disconnected(&cm, active, passive);
    destroy_ids_and_cq(&cm, &[active, passive, listener], cq);
}
