//! librdmacm: identifiers, and the events of their channel.
//!
//! The agent creates its queue pairs with verbs, not with `rdma_create_qp`. It passes their numbers
//! to librdmacm, and modifies them with the attributes that `rdma_init_qp_attr` returns.

use super::{CmLibrary, Qp, check, check_pointer, make_nonblocking, owned, wait_readable};
use crate::protocol::Refusal;
use core::ffi::{c_int, c_void};
use core::{ptr, slice};
use roxe_abi::*;
use socket2::SockAddr;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

const CONNECT_REQUEST: u32 = 4;
const COMM_EST: c_int = 4;
const PS_UDP: c_int = 0x111;
/// Time limit for the resolution of an address or a route, in milliseconds.
const RESOLVE_MS: c_int = 2000;

/// The event channel of all identifiers of a session.
pub(crate) struct CmChannel {
    raw: *mut rdma_event_channel,
    library: CmLibrary,
}

/// A copy of an event, which is acknowledged to librdmacm already.
pub(crate) struct CmEvent {
    /// `enum rdma_cm_event_type`.
    pub(crate) event_type: u32,
    pub(crate) status: i32,
    /// Address of the identifier, for comparison only; for a request, that of the listener.
    pub(crate) id_address: usize,
    /// The new identifier of a request.
    pub(crate) new_id: Option<CmId>,
    pub(crate) private_data: Vec<u8>,
    /// Responder resources and initiator depth of a connection.
    pub(crate) depths: [u8; 2],
    /// Number of the peer's queue pair.
    pub(crate) qpn: u32,
    /// Q_Key of the peer, for a datagram service.
    pub(crate) qkey: u32,
}

impl CmChannel {
    pub(crate) fn open() -> Result<Rc<Self>, Refusal> {
        let library = CmLibrary::open()?;
        // SAFETY: the function takes no arguments.
        let raw = check_pointer("rdma_create_event_channel", unsafe { (library.rdma_create_event_channel)() })?;
        let channel = Rc::new(Self { raw, library });
        // SAFETY: `channel.raw` is valid until `channel` is dropped.
        make_nonblocking(unsafe { (*channel.raw).fd })?;
        Ok(channel)
    }

    /// Returns the next event; `None` if there is none by `until`.
    pub(crate) fn next_event(self: &Rc<Self>, until: Instant) -> Result<Option<CmEvent>, Refusal> {
        // SAFETY: `self.raw` is valid until `self` is dropped.
        if !wait_readable(unsafe { (*self.raw).fd }, until) {
            return Ok(None);
        }
        let mut raw = ptr::null_mut();
        // SAFETY: `self.raw` is valid until `self` is dropped, and `raw` is valid for writing.
        let code = unsafe { (self.library.rdma_get_cm_event)(self.raw, &raw mut raw) };
        match check("rdma_get_cm_event", code) {
            // librdmacm has handled the kernel's event itself and reports none.
            Err(refusal) if refusal.errno == libc::EAGAIN => return Ok(None),
            answer => answer?,
        }
        // SAFETY: `raw` is an event of librdmacm, which is valid until it is acknowledged below.
        let event = unsafe { *raw };
        // SAFETY: the identifier of an event is valid until the event is acknowledged below.
        let is_datagram = unsafe { (*event.id).ps } == PS_UDP;
        let is_request = event.event.unsigned_abs() == CONNECT_REQUEST;
        // SAFETY: the members of the union consist of numbers and pointers, both begin with the
        // private data, and the port space selects the valid one.
        let (data, len, depths, qpn, qkey) = unsafe {
            let (conn, ud) = (event.param.conn, event.param.ud);
            match is_datagram {
                true => (ud.private_data, ud.private_data_len, [0; 2], ud.qp_num, ud.qkey),
                false => {
                    let depths = [conn.responder_resources, conn.initiator_depth];
                    (conn.private_data, conn.private_data_len, depths, conn.qp_num, 0)
                }
            }
        };
        let private_data = match data.is_null() {
            true => Vec::new(),
            // SAFETY: `data` has `len` bytes, which are valid until the event is acknowledged
            // below.
            false => unsafe { slice::from_raw_parts(data.cast::<u8>(), len.into()) }.to_vec(),
        };
        let event = CmEvent {
            event_type: event.event.unsigned_abs(),
            status: event.status,
            id_address: if is_request { event.listen_id.addr() } else { event.id.addr() },
            new_id: is_request.then(|| CmId { raw: event.id, channel: Rc::clone(self) }),
            private_data,
            depths,
            qpn,
            qkey,
        };
        // SAFETY: `raw` is the received event. This acknowledges it once, and nothing uses it
        // afterwards.
        check("rdma_ack_cm_event", unsafe { (self.library.rdma_ack_cm_event)(raw) })?;
        Ok(Some(event))
    }
}

impl Drop for CmChannel {
    fn drop(&mut self) {
        // SAFETY: `open` created `self.raw`, and no identifier uses it: each holds an `Rc` of
        // `self`.
        unsafe { (self.library.rdma_destroy_event_channel)(self.raw) };
    }
}

fn with_private_data(param: rdma_conn_param, private_data: &[u8]) -> Result<rdma_conn_param, Refusal> {
    let private_data_len = private_data_len(private_data)?;
    Ok(rdma_conn_param { private_data: private_data.as_ptr().cast(), private_data_len, ..param })
}

fn private_data_len(private_data: &[u8]) -> Result<u8, Refusal> {
    u8::try_from(private_data.len()).map_err(|_| Refusal::invalid("private data must have at most 255 bytes"))
}

/// An identifier: a listener, or a connection.
pub(crate) struct CmId {
    pub(crate) raw: *mut rdma_cm_id,
    channel: Rc<CmChannel>,
}

impl CmId {
    pub(crate) fn create(channel: &Rc<CmChannel>, space: u32) -> Result<Self, Refusal> {
        let (mut raw, space) = (ptr::null_mut(), c_int::try_from(space).unwrap_or_default());
        // SAFETY: `channel.raw` is valid while `channel` is borrowed, and `raw` is valid for
        // writing.
        let code = unsafe { (channel.library.rdma_create_id)(channel.raw, &raw mut raw, ptr::null_mut(), space) };
        check("rdma_create_id", code)?;
        Ok(Self { raw, channel: Rc::clone(channel) })
    }

    pub(crate) fn listen(&self, address: SocketAddr, backlog: u32) -> Result<u16, Refusal> {
        let (library, address) = (&self.channel.library, SockAddr::from(address));
        // SAFETY: `self.raw` is valid until `destroy`, and `address` outlives the call.
        check("rdma_bind_addr", unsafe { (library.rdma_bind_addr)(self.raw, address.as_ptr().cast()) })?;
        let backlog = c_int::try_from(backlog).unwrap_or(c_int::MAX);
        // SAFETY: `self.raw` is a valid identifier until `destroy`.
        check("rdma_listen", unsafe { (library.rdma_listen)(self.raw, backlog) })?;
        // SAFETY: `self.raw` is a valid identifier until `destroy`.
        Ok(u16::from_be(unsafe { (library.rdma_get_src_port)(self.raw) }))
    }

    /// Starts to resolve the address `to`; an event reports the result.
    pub(crate) fn resolve_addr(&self, from: Option<SocketAddr>, to: SocketAddr) -> Result<(), Refusal> {
        let (from, to) = (from.map(SockAddr::from), SockAddr::from(to));
        let from = from.as_ref().map_or(ptr::null(), SockAddr::as_ptr);
        let resolve = self.channel.library.rdma_resolve_addr;
        // SAFETY: `self.raw` is valid until `destroy`; `from`, if not NULL, and `to` outlive the
        // call.
        check("rdma_resolve_addr", unsafe { resolve(self.raw, from.cast(), to.as_ptr().cast(), RESOLVE_MS) })
    }

    /// Starts to resolve the route; an event reports the result.
    pub(crate) fn resolve_route(&self) -> Result<(), Refusal> {
        // SAFETY: `self.raw` is a valid identifier until `destroy`.
        check("rdma_resolve_route", unsafe { (self.channel.library.rdma_resolve_route)(self.raw, RESOLVE_MS) })
    }

    /// Modifies a queue pair to `state`, with the attributes of the connection.
    pub(crate) fn modify_qp(&self, qp: &Qp, state: i32) -> Result<(), Refusal> {
        let (mut attr, mut mask) = (ibv_qp_attr { qp_state: state, ..ibv_qp_attr::ZERO }, 0);
        let init = self.channel.library.rdma_init_qp_attr;
        // SAFETY: `self.raw` is valid until `destroy`; `attr`, a structure of the ABI, and `mask`
        // outlive the call.
        check("rdma_init_qp_attr", unsafe { init(self.raw, &raw mut attr, &raw mut mask) })?;
        qp.modify(attr, mask.unsigned_abs())
    }

    pub(crate) fn connect(&self, private_data: &[u8], param: rdma_conn_param) -> Result<(), Refusal> {
        let mut param = with_private_data(param, private_data)?;
        // SAFETY: `self.raw` is valid until `destroy`; `param` and its private data outlive the
        // call.
        check("rdma_connect", unsafe { (self.channel.library.rdma_connect)(self.raw, &raw mut param) })
    }

    pub(crate) fn accept(&self, private_data: &[u8], param: rdma_conn_param) -> Result<(), Refusal> {
        let mut param = with_private_data(param, private_data)?;
        // SAFETY: `self.raw` is valid until `destroy`; `param` and its private data outlive the
        // call.
        check("rdma_accept", unsafe { (self.channel.library.rdma_accept)(self.raw, &raw mut param) })
    }

    pub(crate) fn establish(&self) -> Result<(), Refusal> {
        // SAFETY: `self.raw` is a valid identifier until `destroy`.
        check("rdma_establish", unsafe { (self.channel.library.rdma_establish)(self.raw) })
    }

    pub(crate) fn reject(&self, private_data: &[u8]) -> Result<(), Refusal> {
        let (data, len) = (private_data.as_ptr().cast::<c_void>(), private_data_len(private_data)?);
        // SAFETY: `self.raw` is valid until `destroy`, and `data` has `len` bytes, which outlive
        // the call.
        check("rdma_reject", unsafe { (self.channel.library.rdma_reject)(self.raw, data, len) })
    }

    pub(crate) fn disconnect(&self) -> Result<(), Refusal> {
        // SAFETY: `self.raw` is a valid identifier until `destroy`.
        check("rdma_disconnect", unsafe { (self.channel.library.rdma_disconnect)(self.raw) })
    }

    /// Reports to librdmacm that the queue pair raised COMM_EST.
    pub(crate) fn notify(&self) -> Result<(), Refusal> {
        // SAFETY: `self.raw` is a valid identifier until `destroy`.
        check("rdma_notify", unsafe { (self.channel.library.rdma_notify)(self.raw, COMM_EST) })
    }
}

owned! {
    CmId by rdma_destroy_id = |id| Some(id.channel.library.rdma_destroy_id);
}
