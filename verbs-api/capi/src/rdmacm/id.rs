//! Identifiers, their public fields, and event channels.
//!
//! Programs read nearly every field of an identifier directly. [`update_public_fields`] updates the
//! fields after each call that may change them and when an event is delivered, as rdma-core does.
//! Programs also write one field, `qp`, which [`live`] reads.

use super::addrinfo::AddrInfoList;
use super::{addrinfo, devices};
use crate::abi::{rdma_event_channel, *};
use crate::errno::{Errno, Result, einval, invalid, no_result, pointer};
use crate::lock::{ChannelTurn, CmIdState};
use crate::object::{Object, Token, Unacked, exposed};
use crate::qp;
use crate::qp::{RC, UD, XRC_RECV, show_state};
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use roxe_provider::Service;
use roxe_provider::cm::{Address, Channel, Event, EventData, Id, Path, PortSpace};
use roxe_provider::lock::Mutex;
use roxe_wire::Gid;
use std::sync::Arc;

pub(crate) struct ChannelInner {
    pub(crate) channel: Arc<Channel>,
    /// Held from taking an event until the program's structures are updated. The events of a new
    /// identifier follow the request that creates it, and another thread may wait for them: it must
    /// not take them before the identifier exists.
    pub(super) turn: Mutex<ChannelTurn, ()>,
}

exposed! {
    // An `Arc`, because rping before rdma-core 59 destroys the channel while a thread waits on it.
    rdma_event_channel => rdma_event_channel: Arc<ChannelInner>;
}

pub(super) fn create() -> Result<*mut rdma_event_channel> {
    let channel = Channel::create()?;
    let exposed = rdma_event_channel { fd: channel.fd() };
    let inner = Arc::new(ChannelInner { channel, turn: Mutex::new(()) });
    Ok(Object::publish(Token::new(), exposed, inner))
}

/// The channel of a synchronous identifier; destroyed on drop unless
/// [`into_handle`](Self::into_handle) passes it to the identifier.
pub(super) struct OwnChannel(pub(super) *mut rdma_event_channel);

impl OwnChannel {
    pub(super) fn new() -> Result<Self> {
        create().map(Self)
    }

    pub(super) fn into_handle(mut self) -> *mut rdma_event_channel {
        core::mem::replace(&mut self.0, null_mut())
    }
}

impl Drop for OwnChannel {
    fn drop(&mut self) {
        Object::<rdma_event_channel>::retire(self.0).ok();
    }
}

pub(crate) unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(create)
}

pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    no_result(|| Object::<rdma_event_channel>::retire(channel).map(drop));
}

/// Returns the Rust part of a channel. Fails with EINVAL if there is none.
pub(super) fn inner(channel: *mut rdma_event_channel) -> Result<Arc<ChannelInner>> {
    Object::<rdma_event_channel>::with_live(channel, |object| Arc::clone(&object.inner))
}

/// Selector of a path record: exactly this value (IBA §15.2.5.16).
const EXACT: u8 = 2;

/// The C structure of an identifier, and the path record that it points to.
#[repr(C)]
pub(crate) struct CmId {
    pub(super) public: rdma_cm_id,
    path: ibv_sa_path_rec,
}

exposed! {
    CmId => rdma_cm_id: CmIdInner;
}

pub(crate) struct CmIdInner {
    pub(crate) id: Arc<Id>,
    /// Events that the program has not acknowledged.
    pub(super) events: Unacked,
    pub(super) state: Mutex<CmIdState, State>,
}

#[derive(Default)]
pub(super) struct State {
    /// True if the identifier owns its channel, and its calls wait for their outcome.
    pub(super) synchronous: bool,
    /// Attributes of the queue pairs of its requests (`man rdma_create_ep`).
    pub(super) template: Option<Template>,
    /// Data that `rdma_connect` sends before the private data (`ai_connect`).
    pub(super) connect_data: Vec<u8>,
    /// Numbers of READs and atomics that the peer proposes in its request.
    pub(super) proposal: Depths,
    /// The queue pair that the provider's identifier modifies.
    pub(super) qp: QpHandle,
    /// Result of `rdma_resolve_addrinfo` that the program has not queried.
    pub(super) addrinfo: Option<AddrInfoList>,
}

/// A handle that is only compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct QpHandle(pub(super) *mut ibv_qp);

// SAFETY: any thread may compare the handle.
unsafe impl Send for QpHandle {}

impl Default for QpHandle {
    fn default() -> Self {
        Self(null_mut())
    }
}

/// Numbers of outstanding READs and atomics (`struct rdma_conn_param`).
#[derive(Clone, Copy, Default)]
pub(super) struct Depths {
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
}

/// Attributes for the queue pairs of a listener's requests.
#[derive(Clone, Copy)]
pub(super) struct Template(pub(super) ibv_qp_init_attr);

// SAFETY: any thread may use the handles of verbs objects in it.
unsafe impl Send for Template {}

/// Returns the identifier of a handle, after adopting the queue pair that the program has stored in
/// it. Fails with EINVAL if there is no such identifier.
pub(super) fn live<'a>(handle: *mut rdma_cm_id) -> Result<&'a Object<CmId>> {
    let object = Object::live(handle)?;
    adopt_assigned_qp(object);
    Ok(object)
}

/// Adopts the queue pair in `id->qp`, which programs may assign: dapl accepts a request with the
/// queue pair of another identifier, and other programs clear the field to keep their queue pair. A
/// destroyed queue pair counts as none, because programs call `ibv_destroy_qp` and leave the
/// pointer in the field.
fn adopt_assigned_qp(object: &Object<CmId>) {
    let mut state = object.inner.state.lock();
    // SAFETY: the identifier is alive; the program does not write to it during a call.
    let qp = unsafe { (*object.exposed()).public.qp };
    let provided = Object::<ibv_qp_ex>::if_alive(qp).map(|found| &found.inner.qp);
    let now = QpHandle(if provided.is_some() { qp } else { null_mut() });
    if state.qp != now {
        // An error means that multicast groups were left. The program has to join them with the new
        // queue pair in any case.
        object.inner.id.replace_qp(provided).ok();
        state.qp = now;
    }
}

pub(super) fn provider_id<'a>(handle: *mut rdma_cm_id) -> Result<&'a Arc<Id>> {
    live(handle).map(|object| &object.inner.id)
}

pub(super) fn no_device() -> Errno {
    einval("the identifier is not bound to a device: call rdma_bind_addr or rdma_resolve_addr first")
}

pub(super) fn port_space(code: c_int) -> Result<PortSpace> {
    let spaces = [PortSpace::Ipoib, PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib];
    spaces.into_iter().find(|space| c_int::from(space.code()) == code).ok_or_else(|| {
        invalid(|| format!("ps is {code:#x}; accepted are RDMA_PS_IPOIB 2, _TCP 0x106, _UDP 0x111 and _IB 0x13f"))
    })
}

pub(super) fn default_type(port_space: PortSpace) -> c_int {
    match port_space {
        PortSpace::Udp | PortSpace::Ipoib => UD,
        PortSpace::Tcp | PortSpace::Ib => RC,
    }
}

fn service(qp_type: c_int) -> Result<Service> {
    match qp_type {
        XRC_RECV => Ok(Service::XrcTgt),
        other => qp::service(other),
    }
}

/// Returns the C structure of an identifier that is not bound.
fn new_structure(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    port_space: PortSpace,
    qp_type: c_int,
) -> CmId {
    let ps = port_space.code().into();
    let public = rdma_cm_id { channel, context, ps, qp_type, ..rdma_cm_id::ZERO };
    CmId { public, path: ibv_sa_path_rec::default() }
}

pub(super) fn create_on(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    port_space: PortSpace,
    qp_type: c_int,
    synchronous: bool,
) -> Result<*mut rdma_cm_id> {
    let token = Token::new();
    let id = Id::create_for(&inner(channel)?.channel, port_space, service(qp_type)?, token.0)?;
    let state = State { synchronous, ..State::default() };
    Ok(publish(token, new_structure(channel, context, port_space, qp_type), id, state))
}

fn publish(token: Token, exposed: CmId, id: Arc<Id>, state: State) -> *mut rdma_cm_id {
    let events = Unacked::new("events of an rdma_cm_id", None);
    Object::publish(token, exposed, CmIdInner { id, events, state: Mutex::new(state) })
}

/// Creates the identifier of a request to `listener`. It has the listener's context and channel, or
/// a channel of its own if the listener is synchronous.
pub(super) fn create_for_request(event: &Event, listener: *mut rdma_cm_id) -> Result<*mut rdma_cm_id> {
    let object = live(listener)?;
    let synchronous = object.inner.state.lock().synchronous;
    // SAFETY: the listener is alive, because an event has been counted as delivered to it.
    let (channel, context, qp_type) = unsafe { ((*listener).channel, (*listener).context, (*listener).qp_type) };
    let own = synchronous.then(OwnChannel::new).transpose()?;
    let channel = own.as_ref().map_or(channel, |own| own.0);
    if synchronous {
        event.id.migrate(&inner(channel)?.channel)?;
    }
    let token = Token::new();
    let state = State { synchronous, proposal: proposed_depths(&event.data), ..State::default() };
    let handle =
        publish(token, new_structure(channel, context, event.id.port_space(), qp_type), Arc::clone(&event.id), state);
    event.id.set_user_context(token.0);
    if let Err(errno) = live(handle).and_then(update_public_fields) {
        // The program does not have the identifier yet.
        drop(Object::<CmId>::retire(handle)?);
        return Err(errno);
    }
    own.map(OwnChannel::into_handle);
    Ok(handle)
}

fn proposed_depths(data: &EventData) -> Depths {
    match data {
        EventData::Conn(conn) => {
            Depths { responder_resources: conn.responder_resources, initiator_depth: conn.initiator_depth }
        }
        _ => Depths::default(),
    }
}

/// Updates the public fields: device, addresses, path, and the state of the queue pair.
pub(super) fn update_public_fields(object: &Object<CmId>) -> Result<()> {
    let (id, exposed) = (&object.inner.id, object.exposed());
    let (local, peer) = (id.local_addr(), id.peer_addr());
    let gid = |address: Option<&Address>| ibv_gid { raw: address.map_or_else(Gid::default, Address::gid).0 };
    let ibaddr = rdma_ib_addr { sgid: gid(local.as_ref()), dgid: gid(peer.as_ref()), pkey: u16::MAX };
    let (src, dst) = (addrinfo::to_c(local.as_ref()), addrinfo::to_c(peer.as_ref()));
    // SAFETY: the identifier is alive; programs read these fields, and only this library writes
    // them.
    unsafe { (*exposed).public.route.addr = rdma_addr { src, dst, ibaddr } };
    if let Some(path) = id.path() {
        show_path(object, &path);
    }
    // SAFETY: the identifier is alive; the program does not write to it during a call.
    let qp = unsafe { (*exposed).public.qp };
    // The program may have destroyed the queue pair itself.
    if Object::<ibv_qp_ex>::if_alive(qp).is_some() {
        show_state(qp).ok();
    }
    let Some(device) = id.device() else { return Ok(()) };
    let (context, pd) = devices::default_context_and_pd(&device)?;
    // SAFETY: the identifier is alive; programs read these fields, and only this library writes
    // them.
    unsafe {
        (*exposed).public.verbs = context;
        (*exposed).public.port_num = id.port();
        if (*exposed).public.pd.is_null() {
            (*exposed).public.pd = pd;
        }
    }
    Ok(())
}

fn show_path(object: &Object<CmId>, path: &Path) {
    let record = copy_fields!(ibv_sa_path_rec from path { hop_limit, traffic_class, sl, rate, packet_life_time } with {
        dgid: ibv_gid { raw: path.dgid.0 },
        sgid: ibv_gid { raw: path.sgid.0 },
        flow_label: path.flow_label.to_be(),
        reversible: 1,
        numb_path: 1,
        pkey: path.pkey.to_be(),
        mtu_selector: EXACT,
        mtu: path.mtu as u8,
        rate_selector: EXACT,
        packet_life_time_selector: EXACT,
        ..ibv_sa_path_rec::ZERO
    });
    // SAFETY: the identifier is alive; programs read these fields, and only this library writes
    // them. The record is part of the same block.
    unsafe {
        let id = object.exposed();
        (*id).path = record;
        (*id).public.route.path_rec = &raw mut (*id).path;
        (*id).public.route.num_paths = 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_channel_starts_with_its_descriptor() {
        // SAFETY: the channel is new, and destroyed once; NULL is allowed.
        unsafe {
            let channel = rdma_create_event_channel();
            let mut poll = libc::pollfd { fd: (*channel).fd, events: libc::POLLIN, revents: 0 };
            assert_eq!((libc::poll(&raw mut poll, 1, 0), poll.revents), (0, 0));
            rdma_destroy_event_channel(channel);
            rdma_destroy_event_channel(null_mut());
        }
    }
}
