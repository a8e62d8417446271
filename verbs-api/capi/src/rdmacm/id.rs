//! Communication identifiers: what they are, and keeping what programs read in them true.
//!
//! Programs read nearly every field of an identifier directly. [`show`] writes them when a call has
//! changed something and when an event is handed out, which is when the library that this one
//! replaces does. One field they also write: `qp`, which [`live`] reads.
//!
//! Channels, on which identifiers report, are here as well.

use super::addrinfo::AddrInfoList;
use super::{addrinfo, devices};
use crate::abi::{rdma_event_channel, *};
use crate::errno::{Errno, Result, invalid, pointer, silent};
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

/// The Rust part of a channel.
pub(crate) struct ChannelInner {
    pub(crate) channel: Arc<Channel>,
    /// Held by who takes an event, until the program's structures know of it: the events of a new
    /// identifier come after the request that makes it, and another thread may be waiting for them.
    pub(super) turn: Mutex<ChannelTurn, ()>,
}

exposed! {
    // Shared with the threads that wait for events: rping, before rdma-core 59, destroys the
    // channel below one.
    rdma_event_channel => rdma_event_channel: Arc<ChannelInner>;
}

/// A new channel.
pub(super) fn create() -> Result<*mut rdma_event_channel> {
    let channel = Channel::create()?;
    let exposed = rdma_event_channel { fd: channel.fd() };
    let inner = Arc::new(ChannelInner { channel, turn: Mutex::new(()) });
    Ok(Object::publish(Token::new(), exposed, inner))
}

/// A channel for one identifier; destroyed unless taken.
pub(super) struct OwnChannel(pub(super) *mut rdma_event_channel);

impl OwnChannel {
    pub(super) fn new() -> Result<Self> {
        create().map(Self)
    }

    pub(super) fn take(mut self) -> *mut rdma_event_channel {
        core::mem::replace(&mut self.0, null_mut())
    }
}

impl Drop for OwnChannel {
    fn drop(&mut self) {
        Object::<rdma_event_channel>::retire(self.0).ok();
    }
}

/// `man rdma_create_event_channel`.
pub(crate) unsafe extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer(create)
}

/// `man rdma_destroy_event_channel`.
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    silent(|| Object::<rdma_event_channel>::retire(channel).map(drop));
}

/// What `channel` is; EINVAL if there is none.
pub(super) fn inner(channel: *mut rdma_event_channel) -> Result<Arc<ChannelInner>> {
    Object::<rdma_event_channel>::with_live(channel, |object| Arc::clone(&object.inner))
}

/// The only P_Key.
const PKEY: u16 = u16::MAX;
/// What a path record says of a value: exactly this one (IBA §15.2.5.16).
const EXACTLY: u8 = 2;

/// An identifier as programs see it, with the path that it points to.
#[repr(C)]
pub(crate) struct CmId {
    pub(super) public: rdma_cm_id,
    path: ibv_sa_path_rec,
}

exposed! {
    CmId => rdma_cm_id: CmIdInner;
}

/// The Rust part of an identifier.
pub(crate) struct CmIdInner {
    pub(crate) id: Arc<Id>,
    /// Its events that the program holds.
    pub(super) events: Unacked,
    pub(super) state: Mutex<CmIdState, State>,
}

/// What the library remembers of an identifier.
#[derive(Default)]
pub(super) struct State {
    /// The channel is the identifier's own, and calls wait for their outcome.
    pub(super) synchronous: bool,
    /// What requests are given as a queue pair (`man rdma_create_ep`).
    pub(super) template: Option<Template>,
    /// What goes in front of the private data when it connects (`ai_connect`).
    pub(super) connect_data: Vec<u8>,
    /// READs and atomics that the peer of a request wants to have under way, and that it serves.
    pub(super) proposal: Depths,
    /// The queue pair that the provider's identifier moves.
    pub(super) qp: QpHandle,
    /// What `rdma_resolve_addrinfo` found and the program has not taken.
    pub(super) addrinfo: Option<AddrInfoList>,
}

/// A pointer that is only compared, and looked up before it is used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct QpHandle(pub(super) *mut ibv_qp);

// SAFETY: the handle may be used by any thread.
unsafe impl Send for QpHandle {}

impl Default for QpHandle {
    fn default() -> Self {
        Self(null_mut())
    }
}

/// READs and atomics at a time.
#[derive(Clone, Copy, Default)]
pub(super) struct Depths {
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
}

/// The attributes of queue pairs to come.
#[derive(Clone, Copy)]
pub(super) struct Template(pub(super) ibv_qp_init_attr);

// SAFETY: the handles in it may be used by any thread.
unsafe impl Send for Template {}

/// The identifier behind a pointer of the program, with the queue pair that the program has left in
/// it; EINVAL if there is none.
pub(super) fn live<'a>(handle: *mut rdma_cm_id) -> Result<&'a Object<CmId>> {
    let object = Object::live(handle)?;
    follow_qp(object);
    Ok(object)
}

/// `id->qp` is the program's to assign: dapl accepts a request with a queue pair that it made for
/// another identifier, and other programs take one away to keep it. Every call, and every event
/// that is handed out, begins with what it is now. A pointer to a queue pair that is gone is as
/// good as none: programs destroy theirs by `ibv_destroy_qp` too, and leave it.
fn follow_qp(object: &Object<CmId>) {
    let mut state = object.inner.state.lock();
    // SAFETY: alive; the program does not write to it during a call.
    let qp = unsafe { (*object.exposed()).public.qp };
    let provided = Object::<ibv_qp_ex>::if_alive(qp).map(|found| &found.inner.qp);
    let now = QpHandle(if provided.is_some() { qp } else { null_mut() });
    if state.qp != now {
        // Groups that it cannot be in are the program's to join again, as it would have to anyway.
        object.inner.id.replace_qp(provided).ok();
        state.qp = now;
    }
}

/// The provider's identifier behind a pointer of the program.
pub(super) fn provided<'a>(handle: *mut rdma_cm_id) -> Result<&'a Arc<Id>> {
    live(handle).map(|object| &object.inner.id)
}

/// EINVAL for an identifier without a device.
pub(super) fn no_device() -> Errno {
    invalid(|| "the identifier is bound to no device: call rdma_bind_addr or rdma_resolve_addr first".to_owned())
}

/// `enum rdma_port_space`; EINVAL for a number that is none.
pub(super) fn port_space(code: c_int) -> Result<PortSpace> {
    let spaces = [PortSpace::Ipoib, PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib];
    spaces.into_iter().find(|space| c_int::from(space.code()) == code).ok_or_else(|| {
        invalid(|| format!("ps is {code:#x}; accepted are RDMA_PS_IPOIB 2, _TCP 0x106, _UDP 0x111 and _IB 0x13f"))
    })
}

/// The type of queue pair that an identifier is for unless somebody says another.
pub(super) fn usual_type(port_space: PortSpace) -> c_int {
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

/// What the program sees of an identifier that has nothing yet.
fn unbound(channel: *mut rdma_event_channel, context: *mut c_void, port_space: PortSpace, qp_type: c_int) -> CmId {
    let ps = port_space.code().into();
    let public = rdma_cm_id { channel, context, ps, qp_type, ..rdma_cm_id::ZERO };
    CmId { public, path: ibv_sa_path_rec::default() }
}

/// Makes an identifier on a channel.
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
    Ok(publish(token, unbound(channel, context, port_space, qp_type), id, state))
}

fn publish(token: Token, exposed: CmId, id: Arc<Id>, state: State) -> *mut rdma_cm_id {
    Object::publish(
        token,
        exposed,
        CmIdInner { id, events: Unacked::new("events of an rdma_cm_id", None), state: Mutex::new(state) },
    )
}

/// Gives a request that was heard on `listener` an identifier. It takes after the listener: the
/// same channel, or one of its own if the listener is synchronous, and the same context.
pub(super) fn adopt(event: &Event, listener: *mut rdma_cm_id) -> Result<*mut rdma_cm_id> {
    let object = live(listener)?;
    let synchronous = object.inner.state.lock().synchronous;
    // SAFETY: the listener is alive, with an event handed out.
    let (channel, context, qp_type) = unsafe { ((*listener).channel, (*listener).context, (*listener).qp_type) };
    let own = synchronous.then(OwnChannel::new).transpose()?;
    let channel = own.as_ref().map_or(channel, |own| own.0);
    if synchronous {
        event.id.migrate(&inner(channel)?.channel)?;
    }
    let token = Token::new();
    let state = State { synchronous, proposal: proposal(&event.data), ..State::default() };
    let handle =
        publish(token, unbound(channel, context, event.id.port_space(), qp_type), Arc::clone(&event.id), state);
    event.id.set_user(token.0);
    if let Err(errno) = live(handle).and_then(show) {
        // The program has not seen it.
        drop(Object::<CmId>::retire(handle)?);
        return Err(errno);
    }
    own.map(OwnChannel::take);
    Ok(handle)
}

fn proposal(data: &EventData) -> Depths {
    match data {
        EventData::Conn(conn) => {
            Depths { responder_resources: conn.responder_resources, initiator_depth: conn.initiator_depth }
        }
        _ => Depths::default(),
    }
}

/// Shows the program what its identifier has become: device, addresses, path, and the state of its
/// queue pair.
pub(super) fn show(object: &Object<CmId>) -> Result<()> {
    let id = &object.inner.id;
    show_addresses(object, id.local_addr(), id.peer_addr());
    if let Some(path) = id.path() {
        show_path(object, &path);
    }
    // SAFETY: alive; the program does not write to it during a call.
    let qp = unsafe { (*object.exposed()).public.qp };
    // A program may have destroyed the queue pair by itself, and that is no use of it.
    if Object::<ibv_qp_ex>::if_alive(qp).is_some() {
        show_state(qp).ok();
    }
    show_device(object)
}

fn show_device(object: &Object<CmId>) -> Result<()> {
    let Some(device) = object.inner.id.device() else { return Ok(()) };
    let (context, pd) = devices::defaults(&device)?;
    // SAFETY: alive; programs read these fields and only we write them.
    unsafe {
        let id = &raw mut (*object.exposed()).public;
        (*id).verbs = context;
        (*id).port_num = object.inner.id.port();
        if (*id).pd.is_null() {
            (*id).pd = pd;
        }
    }
    Ok(())
}

fn show_addresses(object: &Object<CmId>, local: Option<Address>, peer: Option<Address>) {
    let gid = |address: Option<&Address>| ibv_gid { raw: address.map_or_else(Gid::default, Address::gid).0 };
    let (src, dst) = (addrinfo::to_c(local.as_ref()), addrinfo::to_c(peer.as_ref()));
    let ibaddr = rdma_ib_addr { sgid: gid(local.as_ref()), dgid: gid(peer.as_ref()), pkey: PKEY.to_be() };
    // SAFETY: alive; programs read these fields and only we write them.
    unsafe { (*object.exposed()).public.route.addr = rdma_addr { src, dst, ibaddr } };
}

fn show_path(object: &Object<CmId>, path: &Path) {
    let record = copy_fields!(ibv_sa_path_rec from path { hop_limit, traffic_class, sl, rate, packet_life_time } with {
        dgid: ibv_gid { raw: path.dgid.0 },
        sgid: ibv_gid { raw: path.sgid.0 },
        flow_label: path.flow_label.to_be(),
        reversible: 1,
        numb_path: 1,
        pkey: path.pkey.to_be(),
        mtu_selector: EXACTLY,
        mtu: path.mtu as u8,
        rate_selector: EXACTLY,
        packet_life_time_selector: EXACTLY,
        ..ibv_sa_path_rec::ZERO
    });
    // SAFETY: alive; programs read these fields and only we write them. The record lies in the same
    // block.
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
    fn a_channel_starts_with_its_descriptor() {
        // SAFETY: a fresh channel, whose first field is the descriptor, given back once; NULL is
        // allowed.
        unsafe {
            let channel = rdma_create_event_channel();
            let mut poll = libc::pollfd { fd: (*channel).fd, events: libc::POLLIN, revents: 0 };
            assert_eq!((libc::poll(&raw mut poll, 1, 0), poll.revents), (0, 0));
            rdma_destroy_event_channel(channel);
            rdma_destroy_event_channel(null_mut());
        }
    }
}
