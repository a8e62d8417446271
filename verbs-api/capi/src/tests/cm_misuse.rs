//! Calls of librdmacm with invalid handles and arguments, without connections.

use super::*;
use crate::rdmacm::*;

const TCP: c_int = 0x106;

/// Returns true if a call returned -1 with this errno.
fn fails(rc: c_int, with: c_int) -> bool {
    (rc, errno()) == (-1, with)
}

/// Returns an identifier without a channel.
fn synchronous() -> *mut rdma_cm_id {
    let mut id = null_mut();
    // SAFETY: `id` is a local variable; the call allows NULL for the others.
    assert_eq!(unsafe { rdma_create_id(null_mut(), &raw mut id, null_mut(), TCP) }, 0);
    id
}

fn end(id: *mut rdma_cm_id) {
    // SAFETY: this test created the identifier and does not use it afterwards.
    assert_eq!(unsafe { rdma_destroy_id(id) }, 0);
}

#[test]
fn foreign_cm_handles_are_einval() {
    // SAFETY: the calls look a handle up before they follow any pointer.
    unsafe {
        for id in [null_mut::<rdma_cm_id>(), foreign()] {
            let calls = [
                rdma_destroy_id(id),
                rdma_bind_addr(id, null_mut()),
                rdma_resolve_addr(id, null_mut(), null_mut(), 1),
                rdma_resolve_route(id, 1),
                rdma_listen(id, 0),
                rdma_get_request(id, null_mut()),
                rdma_connect(id, null_mut()),
                rdma_accept(id, null_mut()),
                rdma_reject(id, ptr::null(), 0),
                rdma_reject_ece(id, ptr::null(), 0),
                rdma_establish(id),
                rdma_disconnect(id),
                rdma_notify(id, 4),
                rdma_migrate_id(id, null_mut()),
                rdma_set_option(id, 0, 0, null_mut(), 1),
                rdma_create_qp(id, null_mut(), null_mut()),
                rdma_create_qp_ex(id, null_mut()),
                rdma_create_srq(id, null_mut(), null_mut()),
                rdma_create_srq_ex(id, null_mut()),
                rdma_init_qp_attr(id, null_mut(), null_mut()),
                rdma_set_local_ece(id, null_mut()),
                rdma_get_remote_ece(id, null_mut()),
                rdma_join_multicast(id, null_mut(), null_mut()),
                rdma_join_multicast_ex(id, null_mut(), null_mut()),
                rdma_leave_multicast(id, null_mut()),
            ];
            assert!(calls.iter().all(|&rc| fails(rc, libc::EINVAL)), "{calls:?}");
            assert_eq!((rdma_get_src_port(id), rdma_get_dst_port(id)), (0, 0));
            rdma_destroy_ep(id);
            rdma_destroy_qp(id);
            rdma_destroy_srq(id);
        }
        assert!(fails(rdma_get_cm_event(foreign(), &mut null_mut()), libc::EINVAL));
        assert!(fails(rdma_ack_cm_event(null_mut()), libc::EINVAL));
        assert!(fails(rdma_ack_cm_event(foreign()), libc::EINVAL));
        assert!(fails(rdma_create_ep(null_mut(), null_mut(), null_mut(), null_mut()), libc::EINVAL));
        rdma_destroy_event_channel(foreign());
    }
}

#[test]
fn new_id_shows_its_arguments() {
    // SAFETY: this test keeps both handles alive while it reads their fields.
    unsafe {
        let channel = rdma_create_event_channel();
        let mut id = null_mut();
        let context = ptr::without_provenance_mut::<c_void>(77);
        assert_eq!(rdma_create_id(channel, &raw mut id, context, 0x111), 0);
        let now = id.read();
        assert_eq!((now.channel, now.context, now.ps, now.qp_type), (channel, context, 0x111, UD));
        assert!(now.verbs.is_null() && now.qp.is_null() && now.pd.is_null() && now.event.is_null());
        assert_eq!((now.port_num, now.route.num_paths, now.route.addr.src.ss_family), (0, 0, 0));
        end(id);
        rdma_destroy_event_channel(channel);
    }
}

#[test]
fn create_id_checks_port_space_and_channel() {
    let mut id = null_mut();
    // SAFETY: `id` and `rai` are local variables; the calls look handles up before they follow any
    // pointer.
    unsafe {
        assert!(fails(rdma_create_id(null_mut(), &raw mut id, null_mut(), 7), libc::EINVAL));
        assert!(fails(rdma_create_id(foreign(), &raw mut id, null_mut(), TCP), libc::EINVAL));
        assert!(fails(rdma_create_id(null_mut(), null_mut(), null_mut(), TCP), libc::EINVAL));
        let mut rai: rdma_addrinfo = MaybeUninit::zeroed().assume_init();
        rai.ai_port_space = TCP;
        assert!(fails(rdma_create_ep(&raw mut id, &raw mut rai, null_mut(), null_mut()), libc::EINVAL));
    }
    assert!(id.is_null());
}

#[test]
fn destroyed_id_is_einval() {
    let id = synchronous();
    // SAFETY: this test created the identifier; the second call looks the handle up.
    unsafe {
        // Already synchronous.
        assert!(fails(rdma_migrate_id(id, null_mut()), libc::EINVAL));
        end(id);
        assert!(fails(rdma_destroy_id(id), libc::EINVAL));
    }
}

#[test]
fn unbound_id_creates_no_queues() {
    let rig = Rig::new();
    let id = synchronous();
    let (mut attr, mut mask) = (ibv_qp_attr { qp_state: INIT, ..ibv_qp_attr::default() }, 0);
    let mut srq =
        ibv_srq_init_attr { srq_context: null_mut(), attr: ibv_srq_attr { max_wr: 1, max_sge: 1, srq_limit: 0 } };
    // SAFETY: this test keeps the identifier alive; the structures are its variables.
    unsafe {
        assert!(fails(rdma_create_qp(id, rig.pd, &mut rig.init_attr(RC)), libc::EINVAL));
        assert!(fails(rdma_create_srq(id, rig.pd, &raw mut srq), libc::EINVAL));
        assert!(fails(rdma_init_qp_attr(id, null_mut(), &raw mut mask), libc::EINVAL));
        assert!(fails(rdma_init_qp_attr(id, &raw mut attr, null_mut()), libc::EINVAL));
        attr.qp_state = 77;
        assert!(fails(rdma_init_qp_attr(id, &raw mut attr, &raw mut mask), libc::EINVAL));
    }
    end(id);
}

#[test]
fn cm_option_of_wrong_size_is_refused() {
    let id = synchronous();
    let mut value = [0_u8; 144];
    let value = (&raw mut value).cast::<c_void>();
    // SAFETY: this test keeps the identifier alive; the buffer is longer than any length that is
    // passed.
    unsafe {
        for (level, name, len) in [(0, 0, 4), (0, 1, 1), (0, 2, 8), (0, 3, 4), (1, 1, 71), (1, 1, 72), (1, 1, 0)] {
            assert!(fails(rdma_set_option(id, level, name, value, len), libc::EINVAL), "{level} {name} {len}");
        }
        for (level, name) in [(0, 4), (1, 0), (2, 0), (-1, 0)] {
            assert!(fails(rdma_set_option(id, level, name, value, 1), libc::ENOSYS), "{level} {name}");
        }
        assert!(fails(rdma_set_option(id, 0, 0, null_mut(), 1), libc::EINVAL));
    }
    end(id);
}

#[test]
fn ece_without_vendor_is_refused() {
    let id = synchronous();
    let mut ece = ibv_ece { vendor_id: 0, options: 1, comp_mask: 0 };
    // SAFETY: the test keeps the identifier alive; the structure is a local variable, or the
    // pointer is NULL.
    unsafe {
        assert!(fails(rdma_set_local_ece(id, &raw mut ece), libc::EINVAL));
        assert!(fails(rdma_set_local_ece(id, null_mut()), libc::EINVAL));
        assert!(fails(rdma_get_remote_ece(id, null_mut()), libc::EINVAL));
        ece = ibv_ece { vendor_id: 1, options: 1, comp_mask: 1 };
        assert!(fails(rdma_set_local_ece(id, &raw mut ece), libc::EINVAL));
        assert!(fails(rdma_get_remote_ece(id, &raw mut ece), libc::EINVAL));
        ece.comp_mask = 0;
        assert_eq!(rdma_get_remote_ece(id, &raw mut ece), 0);
        assert_eq!(ece, ibv_ece::default());
    }
    end(id);
}

#[test]
fn join_multicast_ex_needs_address_and_flags() {
    let id = synchronous();
    let join = |comp_mask, join_flags| {
        let mut attr = rdma_cm_join_mc_attr_ex { comp_mask, join_flags, addr: null_mut() };
        // SAFETY: this test keeps the identifier alive; the structure is its variable.
        (unsafe { rdma_join_multicast_ex(id, &raw mut attr, null_mut()) }, errno())
    };
    assert_eq!(join(1, 0), (-1, libc::EINVAL));
    assert_eq!(join(2, 0), (-1, libc::EINVAL));
    assert_eq!(join(3, 0), (-1, libc::EINVAL), "no address");
    assert_eq!(join(4, 0), (-1, libc::EOPNOTSUPP));
    assert_eq!(join(3, 2), (-1, libc::EOPNOTSUPP));
    end(id);
}
