//! Queue pairs that a program assigns to `rdma_cm_id.qp`, as dapl does: it creates one
//! with an identifier of its own and moves it to that of a request.

use super::cm_events::*;
use super::*;
use crate::rdmacm::*;

/// Moves the queue pair of an identifier by assignment; the identifier that had it is destroyed.
fn move_by_hand(from: *mut rdma_cm_id, to: *mut rdma_cm_id) {
    // SAFETY: live identifiers, and no call that uses them is under way.
    unsafe {
        (*to).qp = (&raw mut (*from).qp).replace(null_mut());
        assert_eq!(rdma_destroy_id(from), 0);
    }
}

/// `IBV_WC_WR_FLUSH_ERR`.
const FLUSHED: u32 = 5;

/// Returns an identifier with a queue pair on the program's CQ, bound to the device.
fn placeholder(wire: &Wire) -> *mut rdma_cm_id {
    let id = wire.id(TCP);
    // SAFETY: a live identifier and an address.
    unsafe {
        assert_eq!(rdma_bind_addr(id, loopback_port(0).as_mut_ptr()), 0);
        let cq = ibv_create_cq(read(id).verbs, 16, null_mut(), null_mut(), 0);
        let mut init = ibv_qp_init_attr { send_cq: cq, recv_cq: cq, ..small_qp(RC) };
        assert_eq!(rdma_create_qp(id, null_mut(), &raw mut init), 0, "errno {}", errno());
    }
    id
}

/// Returns both identifiers of a connection whose passive queue pair was assigned.
fn connected_by_hand(wire: &Wire, port: u16) -> (*mut rdma_cm_id, *mut rdma_cm_id) {
    let active = wire.id(TCP);
    wire.resolve(active, port);
    create_qp(active);
    let spare = placeholder(wire);
    ask(active, None);
    let passive = wire.expect(CONNECT_REQUEST).id;
    move_by_hand(spare, passive);
    accept(passive, None);
    wire.expect(ESTABLISHED);
    wire.expect(ESTABLISHED);
    (active, passive)
}

/// Destroys the identifiers of a connection and the CQ of the assigned queue pair.
fn end_with_cq(wire: &Wire, ids: &[*mut rdma_cm_id], cq: *mut ibv_cq) {
    wire.end(ids);
    // SAFETY: a live queue whose queue pair is gone.
    assert_eq!(unsafe { ibv_destroy_cq(cq) }, 0);
}

fn cq_of(id: *mut rdma_cm_id) -> *mut ibv_cq {
    // SAFETY: a live queue pair.
    unsafe { (*read(id).qp).recv_cq }
}

/// Lets `peer` agree to a disconnect, which is then reported to `id`.
fn expect_disconnected(wire: &Wire, peer: *mut rdma_cm_id, id: *mut rdma_cm_id) {
    assert_eq!(wire.expect(DISCONNECTED).id, peer);
    // SAFETY: a live identifier.
    assert_eq!(unsafe { rdma_disconnect(peer) }, 0);
    assert_eq!(wire.expect(DISCONNECTED).id, id);
}

#[test]
fn accept_moves_an_assigned_qp() {
    let wire = Wire::new();
    let (listener, port) = wire.listener(TCP);
    let (active, passive) = connected_by_hand(&wire, port);
    for (id, peer) in [(active, passive), (passive, active)] {
        assert_eq!((qp_state(id), query(read(id).qp).dest_qp_num), (RTS, number(read(peer).qp)));
    }
    let cq = cq_of(passive);
    end_with_cq(&wire, &[active, passive, listener], cq);
}

#[test]
fn connect_moves_an_assigned_qp() {
    let wire = Wire::new();
    let (listener, port) = wire.listener(TCP);
    let active = wire.id(TCP);
    wire.resolve(active, port);
    move_by_hand(placeholder(&wire), active);
    ask(active, None);
    let request = wire.expect(CONNECT_REQUEST);
    let passive = request.id;
    assert_eq!(request.conn().qp_num, number(read(active).qp));
    drop(request);
    create_qp(passive);
    accept(passive, None);
    wire.expect(ESTABLISHED);
    wire.expect(ESTABLISHED);
    assert_eq!((qp_state(active), qp_state(passive)), (RTS, RTS));
    let cq = cq_of(active);
    end_with_cq(&wire, &[active, passive, listener], cq);
}

#[test]
fn qp_assigned_before_the_response_is_connected() {
    let wire = Wire::new();
    let (listener, port) = wire.listener(TCP);
    let active = wire.id(TCP);
    wire.resolve(active, port);
    let spare = placeholder(&wire);
    ask(active, Some(&rdma_conn_param { qp_num: number(read(spare).qp), ..with_data(b"") }));
    let passive = wire.expect(CONNECT_REQUEST).id;
    create_qp(passive);
    move_by_hand(spare, active);
    accept(passive, None);
    assert_eq!([wire.expect(ESTABLISHED).id, wire.expect(ESTABLISHED).id], [active, passive]);
    assert_eq!((qp_state(active), qp_state(passive)), (RTS, RTS));
    let cq = cq_of(active);
    end_with_cq(&wire, &[active, passive, listener], cq);
}

#[test]
fn disconnect_flushes_an_assigned_qp() {
    let wire = Wire::new();
    let (listener, port) = wire.listener(TCP);
    let (active, passive) = connected_by_hand(&wire, port);
    let qp = read(passive).qp;
    let (mut wr, mut bad) = (ibv_recv_wr { wr_id: 7, next: null_mut(), sg_list: ptr::null(), num_sge: 0 }, null_mut());
    // SAFETY: a live queue pair and a valid structure; then a live identifier.
    unsafe {
        assert_eq!((*(*qp).context).ops.post_recv.unwrap()(qp, &raw mut wr, &raw mut bad), 0);
        assert_eq!(rdma_disconnect(passive), 0);
    }
    assert_eq!(qp_state(passive), ERR);
    let (mut wc, cq) = (ibv_wc::default(), cq_of(passive));
    // SAFETY: a live queue and a variable.
    assert_eq!(unsafe { (*(*cq).context).ops.poll_cq.unwrap()(cq, 1, &raw mut wc) }, 1);
    assert_eq!((wc.wr_id, wc.status), (7, FLUSHED));
    expect_disconnected(&wire, active, passive);
    let cq = cq_of(passive);
    end_with_cq(&wire, &[active, passive, listener], cq);
}

#[test]
fn qp_removed_from_its_id_is_not_moved() {
    let wire = Wire::new();
    let (listener, port) = wire.listener(TCP);
    let (active, passive) = connected_by_hand(&wire, port);
    let (qp, cq) = (read(passive).qp, cq_of(passive));
    // SAFETY: a live identifier that no call uses.
    unsafe {
        (*passive).qp = null_mut();
        assert_eq!(rdma_disconnect(passive), 0);
    }
    assert_eq!(state(qp), RTS, "it is none of the identifier's any more");
    create_qp(passive);
    assert_eq!(qp_state(passive), INIT, "another can be created");
    destroy(&[qp]);
    expect_disconnected(&wire, active, passive);
    end_with_cq(&wire, &[active, passive, listener], cq);
}

#[test]
fn unmovable_qp_rejects_the_request() {
    let wire = Wire::new();
    let (listener, port) = wire.listener(TCP);
    let active = wire.id(TCP);
    wire.resolve(active, port);
    create_qp(active);
    let spare = placeholder(&wire);
    let cq = cq_of(spare);
    modify(read(spare).qp, ibv_qp_attr { qp_state: ERR, ..ibv_qp_attr::default() }, STATE);
    ask(active, None);
    let passive = wire.expect(CONNECT_REQUEST).id;
    move_by_hand(spare, passive);
    // SAFETY: a live identifier.
    assert_eq!(unsafe { (rdma_accept(passive, null_mut()), errno()) }, (-1, libc::EINVAL));
    assert_eq!(wire.expect(REJECTED).id, active);
    end_with_cq(&wire, &[active, passive, listener], cq);
}

#[test]
fn stale_qp_pointer_counts_as_none() {
    let wire = Wire::new();
    let (listener, port) = wire.listener(TCP);
    let (active, passive) = connected_by_hand(&wire, port);
    let cq = cq_of(passive);
    // Programs also use `ibv_destroy_qp`, which leaves the pointer in the identifier.
    destroy(&[read(passive).qp]);
    // SAFETY: a live identifier.
    assert_eq!(unsafe { rdma_disconnect(passive) }, 0);
    expect_disconnected(&wire, active, passive);
    end_with_cq(&wire, &[active, passive, listener], cq);
}
