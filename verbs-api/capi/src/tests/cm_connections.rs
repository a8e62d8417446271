//! Connections between two identifiers of one process over the loopback device: events and public
//! fields at each step.

use super::cm_events::*;
use super::*;
use crate::rdmacm::*;

/// Maximum lengths in bytes of the private data of a request, a reply and a rejection.
const REQUEST_DATA: u8 = 56;
const ACCEPT_DATA: u8 = 196;
const REJECT_DATA: u8 = 148;

#[test]
fn connection_is_established_and_disconnected() {
    let cm = CmChannel::new();
    let (listener, port) = cm.listener(TCP);
    let active = cm.id(TCP);
    cm.resolve(active, port);
    let now = read(active);
    assert!(!now.verbs.is_null() && !now.pd.is_null() && now.port_num == 1);
    assert_eq!((now.route.num_paths, now.route.addr.dst.ss_family), (1, libc::AF_INET as u16));
    // SAFETY: this test keeps the identifier alive, and a resolved route has one path record.
    let path = unsafe { now.route.path_rec.read() };
    assert_eq!((path.dgid.raw, path.pkey), (now.route.addr.ibaddr.dgid.raw, 0xffff));
    assert!(path.mtu > 0);
    create_qp(active);
    assert_eq!(qp_state(active), INIT);
    connect_id(active, Some(&with_data(b"hello")));
    let request = cm.expect(CONNECT_REQUEST);
    let passive = request.id;
    assert_eq!((request.listen_id, read(passive).context), (listener, read(listener).context));
    assert_eq!((request.conn().private_data_len, &request.data()[..6]), (REQUEST_DATA, &b"hello\0"[..]));
    assert_eq!(
        (request.conn().responder_resources, request.conn().initiator_depth),
        (3, 2),
        "the two values of the sender, exchanged"
    );
    assert_eq!((request.conn().retry_count, request.conn().rnr_retry_count), (5, 6));
    assert_eq!(request.conn().qp_num, qp_num(read(active).qp));
    create_qp(passive);
    accept(passive, Some(&with_data(b"welcome")));
    drop(request);
    for _ in 0..2 {
        let event = cm.expect(ESTABLISHED);
        if event.id == active {
            assert_eq!((event.conn().private_data_len, &event.data()[..8]), (ACCEPT_DATA, &b"welcome\0"[..]));
        }
    }
    assert_eq!((qp_state(active), qp_state(passive)), (RTS, RTS));
    // SAFETY: the test keeps both identifiers alive.
    unsafe {
        assert_eq!(rdma_get_dst_port(active), port.to_be());
        assert_eq!(rdma_get_src_port(passive), port.to_be());
        assert_eq!(rdma_get_src_port(active), rdma_get_dst_port(passive));
        assert_eq!(rdma_disconnect(active), 0);
    }
    assert_eq!(qp_state(active), ERR);
    for _ in 0..2 {
        let event = cm.expect(DISCONNECTED);
        if event.id == passive {
            // SAFETY: the test keeps the identifier alive.
            assert_eq!(unsafe { rdma_disconnect(passive) }, 0);
        }
    }
    assert_eq!(qp_state(passive), ERR);
    cm.destroy_ids(&[active, passive, listener]);
}

#[test]
fn rejection_carries_reason_and_private_data() {
    let cm = CmChannel::new();
    let (listener, port) = cm.listener(TCP);
    let active = cm.id(TCP);
    cm.resolve(active, port);
    create_qp(active);
    connect_id(active, None);
    let passive = cm.expect(CONNECT_REQUEST).id;
    // SAFETY: this test keeps the identifier alive, and the buffer has the length that is passed.
    assert_eq!(unsafe { rdma_reject(passive, b"no".as_ptr().cast(), 2) }, 0);
    let event = cm.expect(REJECTED);
    assert_eq!((event.id, event.status), (active, 28));
    assert_eq!((event.conn().private_data_len, &event.data()[..3]), (REJECT_DATA, &b"no\0"[..]));
    assert_eq!(qp_state(active), ERR);
    drop(event);
    cm.destroy_ids(&[active, passive, listener]);
}

#[test]
fn connect_without_param_uses_device_limits() {
    let cm = CmChannel::new();
    let (listener, port) = cm.listener(TCP);
    let active = cm.id(TCP);
    cm.resolve(active, port);
    create_qp(active);
    connect_id(active, None);
    let request = cm.expect(CONNECT_REQUEST);
    let passive = request.id;
    let max = device_max(active);
    assert_eq!((request.conn().responder_resources, request.conn().initiator_depth), (max, max));
    assert_eq!((request.conn().retry_count, request.conn().rnr_retry_count, request.conn().flow_control), (7, 7, 0));
    create_qp(passive);
    accept(passive, None);
    drop(request);
    cm.expect(ESTABLISHED);
    cm.expect(ESTABLISHED);
    for id in [active, passive] {
        let attr = query(read(id).qp);
        assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (max, max));
    }
    cm.destroy_ids(&[active, passive, listener]);
}

#[test]
fn parameters_beyond_device_limits_are_refused() {
    let cm = CmChannel::new();
    let (listener, port) = cm.listener(TCP);
    let active = cm.id(TCP);
    cm.resolve(active, port);
    // SAFETY: this test keeps the identifier alive; the structures are its variables, or the
    // pointer is NULL.
    unsafe {
        assert_eq!(
            (rdma_connect(active, null_mut()), errno()),
            (-1, libc::EINVAL),
            "neither queue pair nor parameters"
        );
        create_qp(active);
        let max = device_max(active);
        let mut param = with_data(&[0; 57]);
        assert_eq!((rdma_connect(active, &raw mut param), errno()), (-1, libc::EINVAL), "too much data");
        param = rdma_conn_param { responder_resources: max + 1, ..with_data(b"") };
        assert_eq!((rdma_connect(active, &raw mut param), errno()), (-1, libc::EINVAL));
        param = rdma_conn_param { initiator_depth: max + 1, ..with_data(b"") };
        assert_eq!((rdma_connect(active, &raw mut param), errno()), (-1, libc::EINVAL));
        assert_eq!((rdma_establish(active), errno()), (-1, libc::EINVAL));
    }
    cm.destroy_ids(&[active, listener]);
}

#[test]
fn external_qp_is_moved_by_the_program() {
    let cm = CmChannel::new();
    let (listener, port) = cm.listener(TCP);
    let active = cm.id(TCP);
    cm.resolve(active, port);
    let rig = OwnQps::new(active);
    let mut ece = ibv_ece { vendor_id: 0x1234, options: 0x56, comp_mask: 0 };
    // SAFETY: this test keeps the identifier alive; the structure is its variable.
    assert_eq!(unsafe { rdma_set_local_ece(active, &raw mut ece) }, 0);
    connect_id(active, Some(&rdma_conn_param { qp_num: qp_num(rig.qps[0]), ..with_data(b"") }));
    let request = cm.expect(CONNECT_REQUEST);
    let passive = request.id;
    assert_eq!(request.conn().qp_num, qp_num(rig.qps[0]));
    drop(request);
    // SAFETY: this test keeps the identifier alive; the structure is its variable.
    assert_eq!(unsafe { rdma_get_remote_ece(passive, &raw mut ece) }, 0);
    assert_eq!((ece.vendor_id, ece.options), (0x1234, 0x56));
    qp_to_rts(passive, rig.qps[1]);
    accept(passive, Some(&rdma_conn_param { qp_num: qp_num(rig.qps[1]), ..with_data(b"") }));
    let response = cm.expect(CONNECT_RESPONSE);
    assert_eq!((response.id, response.conn().qp_num), (active, qp_num(rig.qps[1])));
    drop(response);
    qp_to_rts(active, rig.qps[0]);
    // SAFETY: the test keeps the identifier alive.
    assert_eq!(unsafe { rdma_establish(active) }, 0);
    assert_eq!(cm.expect(ESTABLISHED).id, passive);
    for (qp, peer) in [(rig.qps[0], rig.qps[1]), (rig.qps[1], rig.qps[0])] {
        assert_eq!((state(qp), query(qp).dest_qp_num), (RTS, qp_num(peer)));
    }
    cm.destroy_ids(&[active, passive, listener]);
    rig.end();
}

#[test]
fn udp_connect_resolves_the_service() {
    let cm = CmChannel::new();
    let (listener, port) = cm.listener(UDP);
    let active = cm.id(UDP);
    cm.resolve(active, port);
    create_qp(active);
    assert_eq!(qp_state(active), RTS, "datagrams need no connection");
    connect_id(active, Some(&with_data(b"where")));
    let request = cm.expect(CONNECT_REQUEST);
    let passive = request.id;
    assert_eq!((request.ud().private_data_len, &request.data()[..6]), (180, &b"where\0"[..]));
    drop(request);
    create_qp(passive);
    accept(passive, Some(&with_data(b"here")));
    let event = cm.expect(ESTABLISHED);
    assert_eq!((event.id, event.ud().qkey, event.ud().qp_num), (active, 0x0123_4567, qp_num(read(passive).qp)));
    assert_eq!((event.ud().private_data_len, &event.data()[..5]), (136, &b"here\0"[..]));
    let ah = event.ud().ah_attr;
    assert_eq!((ah.is_global, ah.port_num, ah.grh.dgid.raw), (1, 1, read(active).route.addr.ibaddr.dgid.raw));
    drop(event);
    cm.destroy_ids(&[active, passive, listener]);
}

#[test]
fn connect_without_listener_is_rejected() {
    let cm = CmChannel::new();
    let (listener, port) = cm.listener(TCP);
    cm.destroy_ids(&[listener]);
    let active = cm.id(TCP);
    cm.resolve(active, port);
    create_qp(active);
    connect_id(active, None);
    assert_eq!(cm.expect(REJECTED).status, 8, "invalid service id");
    cm.destroy_ids(&[active]);
}

#[test]
fn ack_timeout_option_sets_qp_timeout() {
    let cm = CmChannel::new();
    let (listener, port) = cm.listener(TCP);
    let (active, passive) = cm.connected(port, |id| {
        let mut timeout = 19_u8;
        // SAFETY: the test keeps the identifier alive; `timeout` is the one byte that is passed.
        assert_eq!(unsafe { rdma_set_option(id, 0, 3, (&raw mut timeout).cast(), 1) }, 0);
    });
    assert_eq!((query(read(active).qp).timeout, query(read(passive).qp).timeout), (19, 19));
    // SAFETY: this test keeps the identifiers alive.
    assert_eq!((unsafe { rdma_notify(passive, 4) }, errno()), (-1, libc::EISCONN));
    cm.destroy_ids(&[active, passive, listener]);
}

#[test]
fn path_option_resolves_the_route() {
    let cm = CmChannel::new();
    let (listener, port) = cm.listener(TCP);
    let active = cm.id(TCP);
    // SAFETY: the test keeps the identifier alive; the address is a local variable.
    assert_eq!(unsafe { rdma_resolve_addr(active, null_mut(), loopback_port(port).as_mut_ptr(), 2000) }, 0);
    cm.expect(ADDR_RESOLVED);
    let ends = read(active).route.addr.ibaddr;
    let path = ibv_path_record {
        dgid: ends.dgid,
        sgid: ends.sgid,
        flowlabel_hoplimit: (0x12345_u32 << 8 | 7).to_be(),
        tclass: 32,
        pkey: u16::MAX,
        // MTU 1024 and a lifetime, each with the selector "exactly".
        mtu: 2 << 6 | 3,
        packetlifetime: 2 << 6 | 17,
        ..ibv_path_record::default()
    };
    // The first path is not bidirectional, so it is unusable; the second is GMP, primary and
    // bidirectional.
    let mut paths = [1, 0x2b].map(|flags| ibv_path_data { flags, reserved: 0, path });
    let (at, len) = (paths.as_mut_ptr().cast::<c_void>(), size_of_val(&paths));
    // SAFETY: this test keeps the identifier alive, and the buffer has the length that is passed.
    unsafe {
        assert_eq!((rdma_set_option(active, 1, 1, at, len / 2), errno()), (-1, libc::EINVAL), "no usable path");
        assert_eq!(rdma_set_option(active, 1, 1, at, len), 0);
    }
    assert_eq!(cm.expect(ROUTE_RESOLVED).id, active);
    // SAFETY: this test keeps the identifier alive, and a resolved route has one path record.
    let shown = unsafe { read(active).route.path_rec.read() };
    assert_eq!((shown.mtu, shown.packet_life_time, shown.hop_limit, shown.traffic_class), (3, 17, 7, 32));
    assert_eq!((shown.flow_label, shown.dgid.raw), (0x12345_u32.to_be(), ends.dgid.raw));
    create_qp(active);
    connect_id(active, None);
    let passive = cm.expect(CONNECT_REQUEST).id;
    create_qp(passive);
    accept(passive, None);
    cm.expect(ESTABLISHED);
    cm.expect(ESTABLISHED);
    assert_eq!([active, passive].map(|id| query(read(id).qp).path_mtu), [3, 3]);
    cm.destroy_ids(&[active, passive, listener]);
}
