//! Helpers of the connection tests; tests of channels and events.

use super::*;
use crate::rdmacm::*;
use core::ops::Deref;

pub(super) const TCP: c_int = 0x106;
pub(super) const UDP: c_int = 0x111;
/// `enum rdma_cm_event_type`.
pub(super) const ADDR_RESOLVED: c_int = 0;
pub(super) const ROUTE_RESOLVED: c_int = 2;
pub(super) const CONNECT_REQUEST: c_int = 4;
pub(super) const CONNECT_RESPONSE: c_int = 5;
pub(super) const REJECTED: c_int = 8;
pub(super) const ESTABLISHED: c_int = 9;
pub(super) const DISCONNECTED: c_int = 10;
pub(super) const ADDRINFO_RESOLVED: c_int = 16;
const USER: c_int = 18;

pub(super) struct LoopbackAddr(libc::sockaddr_in);

impl LoopbackAddr {
    pub(super) fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.0).cast()
    }
}

/// Returns 127.0.0.1 with this port.
pub(super) fn loopback_port(port: u16) -> LoopbackAddr {
    // SAFETY: all zeros are a valid `sockaddr_in`: numbers only.
    let mut addr: libc::sockaddr_in = unsafe { MaybeUninit::zeroed().assume_init() };
    addr.sin_family = libc::AF_INET as u16;
    addr.sin_port = port.to_be();
    addr.sin_addr.s_addr = 0x7f00_0001_u32.to_be();
    LoopbackAddr(addr)
}

/// Returns the public fields of an identifier.
pub(super) fn read(id: *mut rdma_cm_id) -> rdma_cm_id {
    // SAFETY: the caller keeps the identifier alive.
    unsafe { id.read() }
}

/// An event, acknowledged on drop.
pub(super) struct HeldEvent {
    /// Address of the event that the library delivered, for `rdma_ack_cm_event`.
    pointer: *mut rdma_cm_event,
    /// The event's fields at delivery.
    copy: rdma_cm_event,
}

impl Deref for HeldEvent {
    type Target = rdma_cm_event;

    fn deref(&self) -> &rdma_cm_event {
        &self.copy
    }
}

impl HeldEvent {
    /// Waits for the next event.
    pub(super) fn wait_on(channel: *mut rdma_event_channel) -> Self {
        let mut event = null_mut();
        // SAFETY: `self` or the caller keeps the channel alive; the pointer is to a local variable.
        unsafe {
            assert!(is_readable((*channel).fd, TIMEOUT), "no event arrives");
            assert_eq!(rdma_get_cm_event(channel, &raw mut event), 0);
            Self { pointer: event, copy: event.read() }
        }
    }

    pub(super) fn conn(&self) -> rdma_conn_param {
        // SAFETY: an event of a connection has the member `conn`.
        unsafe { self.copy.param.conn }
    }

    pub(super) fn ud(&self) -> rdma_ud_param {
        // SAFETY: an event of a datagram service has the member `ud`.
        unsafe { self.copy.param.ud }
    }

    /// Returns the peer's private data.
    pub(super) fn data(&self) -> &[u8] {
        let conn = self.conn();
        // SAFETY: the event holds this many bytes until it is acknowledged on drop.
        unsafe { core::slice::from_raw_parts(conn.private_data.cast(), conn.private_data_len.into()) }
    }
}

impl Drop for HeldEvent {
    fn drop(&mut self) {
        // SAFETY: `wait_on` took the event from a channel, and only this drop acknowledges it.
        assert_eq!(unsafe { rdma_ack_cm_event(self.pointer) }, 0);
    }
}

/// The event channel of all identifiers of a test.
pub(super) struct CmChannel {
    pub(super) channel: *mut rdma_event_channel,
}

impl CmChannel {
    pub(super) fn new() -> Self {
        // SAFETY: the call takes no arguments.
        let channel = unsafe { rdma_create_event_channel() };
        assert!(!channel.is_null());
        Self { channel }
    }

    pub(super) fn id(&self, ps: c_int) -> *mut rdma_cm_id {
        let mut id = null_mut();
        // SAFETY: `self` or the caller keeps the channel alive; the pointer is to a local variable.
        assert_eq!(unsafe { rdma_create_id(self.channel, &raw mut id, null_mut(), ps) }, 0);
        id
    }

    /// Returns a listener on a port chosen by the library.
    pub(super) fn listener(&self, ps: c_int) -> (*mut rdma_cm_id, u16) {
        let id = self.id(ps);
        // SAFETY: the test keeps the identifier alive; the address is a local variable.
        unsafe {
            assert_eq!(rdma_bind_addr(id, loopback_port(0).as_mut_ptr()), 0);
            assert_eq!(rdma_listen(id, 4), 0);
            let port = u16::from_be(rdma_get_src_port(id));
            assert_ne!(port, 0);
            (id, port)
        }
    }

    /// Waits for the next event and asserts its kind.
    pub(super) fn expect(&self, kind: c_int) -> HeldEvent {
        let event = HeldEvent::wait_on(self.channel);
        assert_eq!(event.event, kind, "status {}", event.status);
        event
    }

    /// Resolves address and route to a local port.
    pub(super) fn resolve(&self, id: *mut rdma_cm_id, port: u16) {
        // SAFETY: the test keeps the identifier alive; the address is a local variable.
        unsafe {
            assert_eq!(rdma_resolve_addr(id, null_mut(), loopback_port(port).as_mut_ptr(), 2000), 0);
            assert_eq!(self.expect(ADDR_RESOLVED).id, id);
            assert_eq!(rdma_resolve_route(id, 2000), 0);
            assert_eq!(self.expect(ROUTE_RESOLVED).id, id);
        }
    }

    /// Returns two connected identifiers; `prepare` is called for both first.
    pub(super) fn connected(&self, port: u16, prepare: impl Fn(*mut rdma_cm_id)) -> (*mut rdma_cm_id, *mut rdma_cm_id) {
        let active = self.id(TCP);
        self.resolve(active, port);
        prepare(active);
        create_qp(active);
        connect_id(active, None);
        let passive = self.expect(CONNECT_REQUEST).id;
        prepare(passive);
        create_qp(passive);
        accept(passive, None);
        self.expect(ESTABLISHED);
        self.expect(ESTABLISHED);
        (active, passive)
    }

    /// Destroys identifiers with their queue pairs.
    pub(super) fn destroy_ids(&self, ids: &[*mut rdma_cm_id]) {
        for &id in ids {
            // SAFETY: the test created the identifiers and does not use them afterwards.
            unsafe {
                rdma_destroy_qp(id);
                assert_eq!(rdma_destroy_id(id), 0);
            }
        }
    }
}

impl Drop for CmChannel {
    fn drop(&mut self) {
        // SAFETY: this value's channel has no identifiers left, and nothing uses it afterwards.
        unsafe { rdma_destroy_event_channel(self.channel) };
    }
}

/// Creates a queue pair with default CQs.
pub(super) fn create_qp(id: *mut rdma_cm_id) {
    let mut init = small_qp(read(id).qp_type);
    // SAFETY: the test keeps the identifier alive; the structure is a local variable.
    let rc = unsafe { rdma_create_qp(id, null_mut(), &raw mut init) };
    assert_eq!(rc, 0, "errno {}", errno());
}

pub(super) fn small_qp(qp_type: c_int) -> ibv_qp_init_attr {
    let cap = ibv_qp_cap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    ibv_qp_init_attr {
        qp_context: null_mut(),
        send_cq: null_mut(),
        recv_cq: null_mut(),
        srq: null_mut(),
        cap,
        qp_type,
        sq_sig_all: 1,
    }
}

pub(super) fn qp_state(id: *mut rdma_cm_id) -> c_int {
    state(read(id).qp)
}

/// Returns parameters with distinct numbers and this private data.
pub(super) fn with_data(data: &[u8]) -> rdma_conn_param {
    rdma_conn_param {
        private_data: data.as_ptr().cast(),
        private_data_len: data.len() as u8,
        responder_resources: 2,
        initiator_depth: 3,
        flow_control: 1,
        retry_count: 5,
        rnr_retry_count: 6,
        srq: 0,
        qp_num: 0,
    }
}

fn pointer_to(param: &mut Option<rdma_conn_param>) -> *mut rdma_conn_param {
    param.as_mut().map_or(null_mut(), ptr::from_mut)
}

pub(super) fn connect_id(id: *mut rdma_cm_id, param: Option<&rdma_conn_param>) {
    // SAFETY: the test keeps the identifier alive; the structure is a local variable, or the
    // pointer is NULL.
    let rc = unsafe { rdma_connect(id, pointer_to(&mut param.copied())) };
    assert_eq!(rc, 0, "errno {}", errno());
}

pub(super) fn accept(id: *mut rdma_cm_id, param: Option<&rdma_conn_param>) {
    // SAFETY: the test keeps the identifier alive; the structure is a local variable, or the
    // pointer is NULL.
    let rc = unsafe { rdma_accept(id, pointer_to(&mut param.copied())) };
    assert_eq!(rc, 0, "errno {}", errno());
}

/// Returns the outstanding READs that the device supports.
pub(super) fn device_max(id: *mut rdma_cm_id) -> u8 {
    let mut attr = MaybeUninit::<ibv_device_attr>::uninit();
    // SAFETY: the identifier keeps its context open; the call fills the structure.
    let attr = unsafe {
        assert_eq!(crate::query::ibv_query_device(read(id).verbs, attr.as_mut_ptr()), 0);
        attr.assume_init()
    };
    attr.max_qp_rd_atom as u8
}

/// Two queue pairs without identifiers, and their CQ.
pub(super) struct OwnQps {
    cq: *mut ibv_cq,
    pub(super) qps: [*mut ibv_qp; 2],
}

impl OwnQps {
    pub(super) fn new(id: *mut rdma_cm_id) -> Self {
        let now = read(id);
        // SAFETY: the identifier keeps its context and domain open; the structure is a local
        // variable.
        unsafe {
            let cq = ibv_create_cq(now.verbs, 16, null_mut(), null_mut(), 0);
            let init = ibv_qp_init_attr { send_cq: cq, recv_cq: cq, ..small_qp(RC) };
            Self { cq, qps: [(); 2].map(|()| ibv_create_qp(now.pd, &mut init.clone())) }
        }
    }

    pub(super) fn end(self) {
        destroy(&self.qps);
        // SAFETY: this value owns the CQ, and nothing uses it afterwards.
        assert_eq!(unsafe { ibv_destroy_cq(self.cq) }, 0);
    }
}

/// Moves a queue pair to RTS by `rdma_init_qp_attr`.
pub(super) fn qp_to_rts(id: *mut rdma_cm_id, qp: *mut ibv_qp) {
    for state in [INIT, RTR, RTS] {
        let (mut attr, mut mask) = (ibv_qp_attr { qp_state: state, ..ibv_qp_attr::default() }, 0);
        // SAFETY: the test keeps the identifier alive; the others are local variables.
        assert_eq!(unsafe { rdma_init_qp_attr(id, &raw mut attr, &raw mut mask) }, 0);
        modify(qp, attr, mask);
    }
}

#[test]
fn empty_nonblocking_channel_is_eagain() {
    let cm = CmChannel::new();
    let mut event = null_mut();
    // SAFETY: `self` or the caller keeps the channel alive; the pointer is to a local variable.
    unsafe {
        assert_eq!(libc::fcntl((*cm.channel).fd, libc::F_SETFL, libc::O_NONBLOCK), 0);
        assert_eq!((rdma_get_cm_event(cm.channel, &raw mut event), errno()), (-1, libc::EAGAIN));
        assert_eq!((rdma_get_cm_event(cm.channel, null_mut()), errno()), (-1, libc::EINVAL));
    }
}

#[test]
fn event_is_acknowledged_once() {
    let cm = CmChannel::new();
    let id = cm.id(TCP);
    // SAFETY: this test keeps the identifier alive; the address is a local variable; the call looks
    // the event up.
    unsafe {
        assert_eq!(rdma_resolve_addr(id, null_mut(), loopback_port(9).as_mut_ptr(), 2000), 0);
        let event = cm.expect(ADDR_RESOLVED).pointer;
        assert_eq!((rdma_ack_cm_event(event), errno()), (-1, libc::EINVAL));
    }
    cm.destroy_ids(&[id]);
}

/// An identifier for another thread.
struct SendId(*mut rdma_cm_id);

// SAFETY: the library allows calls on an identifier from any thread.
unsafe impl Send for SendId {}

#[test]
fn destroy_id_waits_for_acknowledgements() {
    let cm = CmChannel::new();
    let id = cm.id(TCP);
    // SAFETY: the test keeps the identifier alive; the address is a local variable.
    assert_eq!(unsafe { rdma_resolve_addr(id, null_mut(), loopback_port(9).as_mut_ptr(), 2000) }, 0);
    let held = cm.expect(ADDR_RESOLVED);
    let (sent, (sender, receiver)) = (SendId(id), std::sync::mpsc::channel());
    let destroyer = std::thread::spawn(move || {
        let SendId(id) = { sent };
        // SAFETY: only this thread uses the identifier until it is destroyed here.
        assert_eq!(unsafe { rdma_destroy_id(id) }, 0);
        sender.send(()).unwrap();
    });
    assert_eq!(receiver.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty));
    assert_eq!(held.status, 0);
    drop(held);
    destroyer.join().unwrap();
    receiver.recv().unwrap();
}

#[test]
fn pending_events_move_with_migrated_id() {
    let (from, to) = (CmChannel::new(), CmChannel::new());
    let id = from.id(TCP);
    // SAFETY: this test keeps the identifier and the channels alive; the address is a local
    // variable.
    unsafe {
        assert_eq!(rdma_resolve_addr(id, null_mut(), loopback_port(9).as_mut_ptr(), 2000), 0);
        assert!(is_readable((*from.channel).fd, TIMEOUT));
        assert_eq!(rdma_migrate_id(id, to.channel), 0);
        assert!(!is_readable((*from.channel).fd, Duration::ZERO));
    }
    assert_eq!(read(id).channel, to.channel);
    assert_eq!(to.expect(ADDR_RESOLVED).id, id);
    to.destroy_ids(&[id]);
}

#[test]
fn id_migrates_to_synchronous_and_back() {
    let cm = CmChannel::new();
    let id = cm.id(TCP);
    // SAFETY: this test keeps the identifier and the channels alive; the address is a local
    // variable.
    unsafe {
        assert_eq!(rdma_migrate_id(id, null_mut()), 0);
        assert_eq!(rdma_resolve_addr(id, null_mut(), loopback_port(9).as_mut_ptr(), 2000), 0);
        let event = read(id).event;
        assert_eq!(((*event).event, (*event).status, (*event).id), (ADDR_RESOLVED, 0, id));
        assert_eq!(rdma_resolve_route(id, 2000), 0);
        assert_eq!((*read(id).event).event, ROUTE_RESOLVED);
        assert_eq!(rdma_migrate_id(id, cm.channel), 0);
    }
    assert!(read(id).event.is_null() && read(id).channel == cm.channel);
    cm.destroy_ids(&[id]);
}

#[test]
fn write_cm_event_delivers_a_user_event() {
    let cm = CmChannel::new();
    let id = cm.id(TCP);
    // SAFETY: the test keeps the identifier alive.
    unsafe {
        assert_eq!(rdma_write_cm_event(id, USER, -5, u64::MAX - 1), 0);
        assert_eq!((rdma_write_cm_event(id, ESTABLISHED, 0, 0), errno()), (-1, libc::EINVAL));
        let event = cm.expect(USER);
        // SAFETY: user events have the member `arg`.
        assert_eq!((event.id, event.status, event.param.arg), (id, -5, u64::MAX - 1));
        drop(event);
        assert_eq!(rdma_destroy_id(id), 0);
    }
}
