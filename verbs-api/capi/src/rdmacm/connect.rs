//! Connecting, accepting, rejecting and disconnecting; ECE; multicast groups.

use super::addrinfo::read;
use super::id::{CmId, Depths, live, no_device, provider_id, update_public_fields};
use super::lifecycle::{complete, release_event};
use crate::abi::{ibv_ece, ibv_qp, ibv_qp_ex, rdma_cm_id, rdma_cm_join_mc_attr_ex, rdma_conn_param};
use crate::errno::{EINVAL, EOPNOTSUPP, Result, einval, invalid, out_of_range, required, zero};
use crate::object::Object;
use core::ffi::{c_int, c_void};
use libc::sockaddr;
use roxe_provider::cm::{Address, ConnParam, Ece, Id, JoinFlags, PortSpace, RejReason};
use roxe_provider::wire::cm::VendorId;
use roxe_provider::{AsyncEventKind, DeviceAttr, Service};
use std::sync::Arc;

/// `retry_count` and `rnr_retry_count` without connection parameters.
const DEFAULT_RETRY_COUNT: u8 = 7;

pub(crate) unsafe extern "C" fn rdma_connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    zero(|| {
        // SAFETY: the program passes NULL or a structure that is valid during the call.
        let wanted = unsafe { param.as_ref() };
        let object = live(id)?;
        check_param(object, wanted)?;
        let depths = wanted.map_or(Depths::MAX, Depths::from_param);
        let data = object.inner.state.lock().connect_data.clone();
        // SAFETY: the program passes private data of `private_data_len` bytes, valid during the
        // call.
        let param = unsafe { conn_param(object, wanted, depths, data) };
        object.inner.id.connect(&param)?;
        object.inner.state.lock().connect_data.clear();
        show_and_complete(id)
    })
}

/// `man rdma_accept`. After RDMA_CM_EVENT_CONNECT_RESPONSE it acts like `rdma_establish`.
pub(crate) unsafe extern "C" fn rdma_accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    zero(|| {
        // SAFETY: the program passes NULL or a structure that is valid during the call.
        let wanted = unsafe { param.as_ref() };
        let object = live(id)?;
        check_param(object, wanted)?;
        let proposal = object.inner.state.lock().proposal.limited_to(&device_attr(object)?);
        let depths = wanted.map_or(proposal, |wanted| Depths::from_param(wanted).or_for_max(proposal));
        // SAFETY: the program passes private data of `private_data_len` bytes, valid during the
        // call.
        let param = unsafe { conn_param(object, wanted, depths, vec![]) };
        object.inner.id.accept(&param)?;
        if object.inner.id.service() == Service::Ud { Ok(()) } else { show_and_complete(id) }
    })
}

/// Updates the public fields of the identifier and, if it is synchronous, waits for the outcome.
fn show_and_complete(id: *mut rdma_cm_id) -> Result<()> {
    update_public_fields(live(id)?)?;
    complete(id)
}

fn device_attr(object: &Object<CmId>) -> Result<DeviceAttr> {
    object.inner.id.device().map(|device| device.attr()).ok_or_else(no_device)
}

fn queue_pair(object: &Object<CmId>) -> *mut ibv_qp {
    // SAFETY: the identifier is alive; the program does not write to it during a call.
    unsafe { (*object.exposed()).public.qp }
}

/// Checks the parameters of a connection. Like rdma-core, checks only those of the TCP port space.
/// Fails with EINVAL if there is neither a queue pair nor parameters, or for more outstanding READs
/// than the device supports.
fn check_param(object: &Object<CmId>, wanted: Option<&rdma_conn_param>) -> Result<()> {
    if object.inner.id.port_space() != PortSpace::Tcp {
        return Ok(());
    }
    let Some(wanted) = wanted else {
        let is_null = queue_pair(object).is_null();
        let refused = || Err(einval("conn_param is NULL, and the identifier has no queue pair"));
        return if is_null { refused() } else { Ok(()) };
    };
    let attr = device_attr(object)?;
    let fits = |wanted: u8, max: u32| wanted == ConnParam::MAX || u32::from(wanted) <= max;
    let given = (wanted.responder_resources, wanted.initiator_depth);
    let max = (attr.max_qp_rd_atom, attr.max_qp_init_rd_atom);
    if fits(given.0, max.0) && fits(given.1, max.1) {
        return Ok(());
    }
    Err(invalid(|| {
        format!("responder_resources and initiator_depth are {given:?}; the device takes at most {max:?}, or 255")
    }))
}

impl Depths {
    const MAX: Self = Self { responder_resources: ConnParam::MAX, initiator_depth: ConnParam::MAX };

    const fn from_param(wanted: &rdma_conn_param) -> Self {
        Self { responder_resources: wanted.responder_resources, initiator_depth: wanted.initiator_depth }
    }

    fn limited_to(self, attr: &DeviceAttr) -> Self {
        let least = |a: u8, b: u32| u8::try_from(b).map_or(a, |b| a.min(b));
        Self {
            responder_resources: least(self.responder_resources, attr.max_qp_rd_atom),
            initiator_depth: least(self.initiator_depth, attr.max_qp_init_rd_atom),
        }
    }

    /// Replaces each `ConnParam::MAX` by the value of `other`.
    fn or_for_max(self, other: Self) -> Self {
        let choose = |wanted, max| if wanted == ConnParam::MAX { max } else { wanted };
        Self {
            responder_resources: choose(self.responder_resources, other.responder_resources),
            initiator_depth: choose(self.initiator_depth, other.initiator_depth),
        }
    }
}

/// Converts connection parameters; `data` precedes the program's private data.
///
/// # Safety
/// The program's private data is NULL or has the length in `private_data_len`.
unsafe fn conn_param(
    object: &Object<CmId>,
    wanted: Option<&rdma_conn_param>,
    depths: Depths,
    mut data: Vec<u8>,
) -> ConnParam {
    if let Some(wanted) = wanted {
        // SAFETY: the caller guarantees private data of this length.
        data.extend_from_slice(unsafe { bytes(wanted.private_data, wanted.private_data_len) });
    }
    let qp = queue_pair(object);
    // SAFETY: `with_live` keeps the QP alive during the closure; nothing writes these fields after
    // creation.
    let own = Object::<ibv_qp_ex>::with_live(qp, |_| unsafe { ((*qp).qp_num, !(*qp).srq.is_null()) }).ok();
    let (qp_num, srq) = own.or_else(|| wanted.map(|wanted| (wanted.qp_num, wanted.srq != 0))).unwrap_or_default();
    ConnParam {
        private_data: data,
        responder_resources: depths.responder_resources,
        initiator_depth: depths.initiator_depth,
        flow_control: wanted.is_some_and(|wanted| wanted.flow_control != 0),
        retry_count: wanted.map_or(DEFAULT_RETRY_COUNT, |wanted| wanted.retry_count),
        rnr_retry_count: wanted.map_or(DEFAULT_RETRY_COUNT, |wanted| wanted.rnr_retry_count),
        srq,
        qp_num,
    }
}

/// Returns the program's private data.
///
/// # Safety
/// `data` is NULL or points to `len` bytes that are valid for `'a`.
unsafe fn bytes<'a>(data: *const c_void, len: u8) -> &'a [u8] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: not NULL; the caller guarantees `len` bytes that are valid for `'a`.
    unsafe { core::slice::from_raw_parts(data.cast(), len.into()) }
}

pub(crate) unsafe extern "C" fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, len: u8) -> c_int {
    // SAFETY: the program passes NULL or private data of `len` bytes, valid during the call.
    zero(|| unsafe { reject(id, private_data, len, RejReason::ConsumerDefined) })
}

/// Rejects a request like `rdma_reject`, for the reason that the peer's vendor options are not
/// supported.
pub(crate) unsafe extern "C" fn rdma_reject_ece(id: *mut rdma_cm_id, private_data: *const c_void, len: u8) -> c_int {
    // SAFETY: the program passes NULL or private data of `len` bytes, valid during the call.
    zero(|| unsafe { reject(id, private_data, len, RejReason::VendorOptionNotSupported) })
}

/// Rejects a request or a response of the peer.
///
/// # Safety
/// `data` is NULL or points to `len` bytes.
unsafe fn reject(id: *mut rdma_cm_id, data: *const c_void, len: u8, reason: RejReason) -> Result<()> {
    let object = live(id)?;
    // SAFETY: the caller guarantees NULL or `len` bytes.
    object.inner.id.reject(unsafe { bytes(data, len) }, reason)?;
    // A synchronous identifier holds the event of the request, which is no longer needed.
    release_event(id);
    update_public_fields(object)
}

/// `man rdma_establish`: fails with EINVAL if the identifier has a queue pair, because the library
/// confirms its connection.
pub(crate) unsafe extern "C" fn rdma_establish(id: *mut rdma_cm_id) -> c_int {
    zero(|| {
        let object = live(id)?;
        if !queue_pair(object).is_null() {
            return Err(invalid(|| {
                "the identifier has a queue pair (rdma_create_qp), whose connection is confirmed by the library"
                    .to_owned()
            }));
        }
        Ok(object.inner.id.establish()?)
    })
}

pub(crate) unsafe extern "C" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int {
    zero(|| {
        live(id)?.inner.id.disconnect()?;
        show_and_complete(id)
    })
}

/// `man rdma_notify`: fails with EISCONN if the connection is already established, EINVAL for other
/// events.
pub(crate) unsafe extern "C" fn rdma_notify(id: *mut rdma_cm_id, event: c_int) -> c_int {
    const COMM_EST: c_int = AsyncEventKind::CommEst as c_int;
    const PATH_MIG: c_int = AsyncEventKind::PathMig as c_int;
    zero(|| {
        let object = live(id)?;
        let kind = match event {
            COMM_EST => AsyncEventKind::CommEst,
            PATH_MIG => AsyncEventKind::PathMig,
            _ => return Err(out_of_range("event", event, "IBV_EVENT_COMM_EST 4 and IBV_EVENT_PATH_MIG 6")),
        };
        object.inner.id.notify(kind)?;
        update_public_fields(object)
    })
}

/// `RDMA_CM_JOIN_MC_ATTR_ADDRESS` and `_JOIN_FLAGS`; both are required.
const ATTR_ADDRESS: u32 = 1;
const ATTR_JOIN_FLAGS: u32 = 1 << 1;
const FULL_MEMBER: u32 = 0;
const SEND_ONLY: u32 = 1;

pub(crate) unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the program passes NULL or an address of its family's size, valid during the call.
    zero(|| join(id, &unsafe { read(addr) }?, JoinFlags::default(), context))
}

/// `man rdma_join_multicast_ex`: fails with EOPNOTSUPP for unknown flags, EINVAL without address or
/// flags.
pub(crate) unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    zero(|| {
        let attr = required!(attr);
        let flags = join_flags(attr)?;
        // SAFETY: the program passes NULL or an address of its family's size, valid during the
        // call.
        let addr = unsafe { read(attr.addr) }?;
        join(id, &addr, flags, context)
    })
}

fn join_flags(attr: &rdma_cm_join_mc_attr_ex) -> Result<JoinFlags> {
    const ADDRESS_AND_FLAGS: u32 = ATTR_ADDRESS | ATTR_JOIN_FLAGS;
    match (attr.comp_mask, attr.join_flags) {
        (mask, _) if mask & !ADDRESS_AND_FLAGS != 0 => Err(EOPNOTSUPP),
        (ADDRESS_AND_FLAGS, FULL_MEMBER) => Ok(JoinFlags { send_only: false }),
        (ADDRESS_AND_FLAGS, SEND_ONLY) => Ok(JoinFlags { send_only: true }),
        (ADDRESS_AND_FLAGS, _) => Err(EOPNOTSUPP),
        _ => Err(EINVAL),
    }
}

fn join(id: *mut rdma_cm_id, addr: &Address, flags: JoinFlags, context: *mut c_void) -> Result<()> {
    let user_context = context.expose_provenance() as u64;
    provider_id(id)?.join_multicast(addr, flags, user_context)?;
    complete(id)
}

pub(crate) unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int {
    zero(|| {
        let object = live(id)?;
        // SAFETY: the program passes NULL or an address of its family's size, valid during the
        // call.
        let addr = unsafe { read(addr) }?;
        object.inner.id.leave_multicast(&addr)?;
        update_public_fields(object)
    })
}

/// Returns the provider's identifier. Fails with EINVAL if it has a queue pair. Without one, the
/// program modifies its queue pair itself.
fn id_without_qp<'a>(id: *mut rdma_cm_id) -> Result<&'a Arc<Id>> {
    let object = live(id)?;
    if queue_pair(object).is_null() { Ok(&object.inner.id) } else { Err(EINVAL) }
}

/// `man rdma_set_local_ece`: fails with EINVAL without a vendor id.
pub(crate) unsafe extern "C" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    zero(|| {
        let id = id_without_qp(id)?;
        let ece = required!(ece);
        if ece.vendor_id == 0 || ece.comp_mask != 0 {
            return Err(EINVAL);
        }
        Ok(id.set_local_ece(Ece { vendor_id: VendorId::new(ece.vendor_id), options: ece.options })?)
    })
}

pub(crate) unsafe extern "C" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    zero(|| {
        let id = id_without_qp(id)?;
        // SAFETY: the program passes NULL or a structure that is valid during the call.
        let ece = unsafe { ece.as_mut() }.filter(|ece| ece.comp_mask == 0).ok_or(EINVAL)?;
        let Ece { vendor_id, options } = id.remote_ece();
        *ece = ibv_ece { vendor_id: vendor_id.get(), options, comp_mask: 0 };
        Ok(())
    })
}
