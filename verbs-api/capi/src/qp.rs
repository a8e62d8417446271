//! Queue pairs: create, modify, query and destroy. Posting is in `data_path.rs` and `qp_ex.rs`.
//!
//! `ibv_create_qp_ex` creates two more kinds. A hash QP distributes received packets over a table
//! of work queues (`wq.rs`) and has no queues of its own. An XRC target belongs to an XRC domain
//! and may have several handles (`man ibv_open_qp`). It lives until the program destroys the last
//! handle, and reports its asynchronous events on the handle that created it.

use crate::abi::*;
use crate::ah::ah_attr;
use crate::domain::xrcd;
use crate::errno::{
    EINVAL, EOPNOTSUPP, Result, invalid, null, pointer, required, status, status_of_modify, unsupported, write_out,
};
use crate::object::{Object, Resource, Token};
use crate::objects::{QpInner, allocator, context, context_of, cq, pd, qp};
use crate::srq::optional_srq;
use crate::wr_batch::{Batch, Builder};
use crate::{faults, qp_ex, rate, tsan, undefined, wq, wr_batch};
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use roxe_provider::{Access, AttrMask, Context, HashFields, Qp, QpAttr, QpInit, RxHash, TOEPLITZ_KEY_LEN};
use roxe_transport::qp::{MigState, QpCaps, QpState, RateLimit, Service};
use roxe_transport::wr::Av;
use roxe_wire::{Gid, PathMtu, Psn, Qkey, Qpn};
use std::sync::Arc;

/// `IBV_QPT_RC`, `_UC`, `_UD`, `_RAW_PACKET`, `_XRC_SEND` and `_XRC_RECV`.
pub(crate) const RC: c_int = 2;
const UC: c_int = 3;
pub(crate) const UD: c_int = 4;
const RAW_PACKET: c_int = 8;
pub(crate) const XRC_INI: c_int = 9;
pub(crate) const XRC_RECV: c_int = 10;

/// Name of the verb in error texts.
const MODIFY: &str = "ibv_modify_qp";

/// Returns the service of an `enum ibv_qp_type`. Fails with EOPNOTSUPP for XRC targets, which a
/// protection domain does not create, and for unknown types.
pub(crate) fn service(qp_type: c_int) -> Result<Service> {
    match qp_type {
        RC => Ok(Service::Rc),
        UC => Ok(Service::Uc),
        UD => Ok(Service::Ud),
        RAW_PACKET => Ok(Service::Raw),
        XRC_INI => Ok(Service::XrcIni),
        _ => Err(unsupported(|| {
            format!("qp_type is {qp_type}; accepted are RC 2, UC 3, UD 4, RAW_PACKET 8, XRC_SEND 9 and XRC_RECV 10")
        })),
    }
}

fn caps(cap: &ibv_qp_cap) -> QpCaps {
    copy_fields!(QpCaps from cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data })
}

fn cap_to_c(caps: &QpCaps) -> ibv_qp_cap {
    copy_fields!(ibv_qp_cap from caps { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data })
}

/// Creates a QP and writes its actual capacities to `init`.
pub(crate) fn create(handle: *mut ibv_pd, init: &mut ibv_qp_init_attr, extended: bool) -> Result<*mut ibv_qp> {
    let token = Token::new();
    let service = service(init.qp_type)?;
    // An XRC initiator has no receive queue, and programs leave the fields of the receive side
    // empty.
    let receives = service != Service::XrcIni;
    let qp = pd(handle)?.create_qp(QpInit {
        service,
        caps: caps(&init.cap),
        sq_sig_all: init.sq_sig_all != 0,
        send_cq: Arc::clone(cq(init.send_cq)?),
        recv_cq: Arc::clone(cq(if receives { init.recv_cq } else { init.send_cq })?),
        srq: if receives { optional_srq(init.srq)? } else { None },
        user_context: token.0,
    })?;
    init.cap = cap_to_c(&qp.query().1.caps);
    let builder = extended.then(|| Builder::new(Batch::new(&init.cap, service)));
    publish(handle, init, token, QpInner::new(qp, builder))
}

pub(crate) fn exposed(base: ibv_qp) -> ibv_qp_ex {
    faults::qp_ex(tsan::qp_ex(qp_ex::exposed(base)))
}

fn publish(handle: *mut ibv_pd, init: &ibv_qp_init_attr, token: Token, inner: QpInner) -> Result<*mut ibv_qp> {
    let (context, qp_num, state) = (context_of(handle)?, inner.qp.qpn().get(), QpState::Reset as c_int);
    let base = copy_fields!(ibv_qp from init { qp_context, send_cq, recv_cq, srq, qp_type } with {
        context, pd: handle, handle: token.short(), qp_num, state, ..ibv_qp::ZERO
    });
    Object::publish_in(allocator(handle, Resource::Qp)?, token, exposed(base), inner)
}

pub(crate) unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    pointer(|| create(pd, required!(mut init), false))
}

/// `man ibv_wr_post`: NULL unless the QP was created with `send_ops_flags`.
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(handle: *mut ibv_qp) -> *mut ibv_qp_ex {
    pointer(|| {
        let object = Object::<ibv_qp_ex>::live(handle)?;
        object.inner.builder.as_ref().map(|_| object.exposed()).ok_or_else(|| {
            unsupported(|| "the queue pair was created without IBV_QP_INIT_ATTR_SEND_OPS_FLAGS".to_owned())
        })
    })
}

fn resolve(context: &Context, attr: &ibv_ah_attr, mask: AttrMask, bit: AttrMask) -> Result<Av> {
    if mask.contains(bit) { Ok(context.resolve_av(&ah_attr(attr))?) } else { Ok(Av::default()) }
}

/// Returns the value of an enumeration field if `mask` has `bit`. Fails with EINVAL for a number
/// that the enumeration lacks.
fn enum_field<T>(
    (mask, bit): (AttrMask, AttrMask),
    code: c_int,
    convert: fn(u8) -> Option<T>,
    (field, values): (&'static str, &'static str),
) -> Result<Option<T>> {
    if !mask.contains(bit) {
        return Ok(None);
    }
    let unknown = || undefined::refuse(EINVAL, MODIFY, (field, code.cast_unsigned()), values);
    u8::try_from(code).ok().and_then(convert).map(Some).ok_or_else(unknown)
}

/// Converts attributes. Reads only the fields that `mask` names: programs may leave the others
/// uninitialised.
fn from_c(context: &Context, attr: &ibv_qp_attr, mask: AttrMask) -> Result<QpAttr> {
    let to_state = |code: u8| QpState::from_code(code.into());
    let states = "the values of enum ibv_qp_state";
    let access = if mask.contains(AttrMask::ACCESS_FLAGS) { attr.qp_access_flags } else { 0 };
    let migrations = ("path_mig_state", "the values of enum ibv_mig_state");
    let migration = enum_field((mask, AttrMask::PATH_MIG_STATE), attr.path_mig_state, MigState::from_code, migrations)?;
    let default = QpAttr::default();
    let mtus = ("path_mtu", "the values of enum ibv_mtu, 1 to 5");
    let mtu = enum_field((mask, AttrMask::PATH_MTU), attr.path_mtu, PathMtu::from_code, mtus)?;
    Ok(copy_fields!(QpAttr from attr {
        pkey_index, alt_pkey_index, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, timeout, retry_cnt, rnr_retry, alt_timeout,
    } with {
        state: enum_field((mask, AttrMask::STATE), attr.qp_state, to_state, ("qp_state", states))?.unwrap_or_default(),
        cur_state: enum_field((mask, AttrMask::CUR_STATE), attr.cur_qp_state, to_state, ("cur_qp_state", states))?,
        path_mtu: mtu.unwrap_or(default.path_mtu),
        path_mig_state: migration.unwrap_or_default(),
        qkey: Qkey(attr.qkey),
        rq_psn: Psn::new(attr.rq_psn),
        sq_psn: Psn::new(attr.sq_psn),
        dest_qpn: Qpn::new(attr.dest_qp_num),
        access: Access::from_bits(access)
            .ok_or_else(|| undefined::access(EINVAL, MODIFY, ("qp_access_flags", access)))?,
        av: resolve(context, &attr.ah_attr, mask, AttrMask::AV)?,
        alt_av: resolve(context, &attr.alt_ah_attr, mask, AttrMask::ALT_PATH)?,
        en_sqd_async_notify: attr.en_sqd_async_notify != 0,
        port: attr.port_num,
        alt_port: attr.alt_port_num,
        rate_limit: RateLimit {
            kbps: if mask.contains(AttrMask::RATE_LIMIT) { attr.rate_limit } else { 0 },
            max_burst: 0,
        },
    }))
}

/// Converts an address vector; returns zeros if none is set.
fn av_to_c(av: &Av, port: u8) -> ibv_ah_attr {
    if av.dgid.is_zero() {
        return ibv_ah_attr::default();
    }
    ibv_ah_attr {
        grh: copy_fields!(ibv_global_route from av { flow_label, sgid_index, hop_limit, traffic_class } with {
            dgid: ibv_gid { raw: av.dgid.0 },
        }),
        static_rate: rate::static_rate_code(av.static_rate),
        is_global: 1,
        port_num: port,
        ..ibv_ah_attr::default()
    }
}

pub(crate) fn to_c(attr: &QpAttr, cap: ibv_qp_cap) -> ibv_qp_attr {
    copy_fields!(ibv_qp_attr from attr {
        pkey_index, alt_pkey_index, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, timeout, retry_cnt, rnr_retry, alt_timeout,
    } with {
        qp_state: attr.state as c_int,
        cur_qp_state: attr.state as c_int,
        path_mtu: attr.path_mtu as c_int,
        path_mig_state: attr.path_mig_state as c_int,
        qkey: attr.qkey.0,
        rq_psn: attr.rq_psn.get(),
        sq_psn: attr.sq_psn.get(),
        dest_qp_num: attr.dest_qpn.get(),
        qp_access_flags: attr.access.bits(),
        cap,
        ah_attr: av_to_c(&attr.av, attr.port),
        alt_ah_attr: av_to_c(&attr.alt_av, attr.alt_port),
        en_sqd_async_notify: attr.en_sqd_async_notify.into(),
        sq_draining: 0,
        port_num: attr.port,
        alt_port_num: attr.alt_port,
        rate_limit: attr.rate_limit.kbps,
    })
}

/// `man ibv_modify_qp`: an error leaves the QP unchanged.
pub(crate) unsafe extern "C" fn ibv_modify_qp(handle: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    status_of_modify(requested_state(attr, mask), || {
        let qp = qp(handle)?;
        let attr = required!(attr);
        let mask = mask.cast_unsigned();
        let unknown = || undefined::refuse(EINVAL, MODIFY, ("attr_mask", mask), "the bits of enum ibv_qp_attr_mask");
        let mask = AttrMask::from_bits(mask).ok_or_else(unknown)?;
        qp.modify(&from_c(qp.pd().context(), attr, mask)?, mask)?;
        show_state(handle)
    })
}

/// Returns the state that `ibv_modify_qp` requests, as fault rules name it; empty if it requests
/// none.
fn requested_state(attr: *const ibv_qp_attr, mask: c_int) -> &'static str {
    const NAMES: [&str; 7] = ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"];
    // SAFETY: the program passes NULL or a structure that is valid during the call.
    let attr = unsafe { attr.as_ref() }.filter(|_| mask.cast_unsigned() & AttrMask::STATE.bits() != 0);
    attr.and_then(|attr| NAMES.get(attr.qp_state as usize)).copied().unwrap_or_default()
}

/// Writes the current state to the structure that the program sees.
pub(crate) fn show_state(handle: *mut ibv_qp) -> Result<()> {
    let state = qp(handle)?.state();
    // SAFETY: `qp` found the object, so its structure is alive; programs only read the field.
    unsafe { (&raw mut (*handle).state).write(state as c_int) };
    Ok(())
}

/// `man ibv_modify_qp_rate_limit`: fails with EINVAL before RTS, below 1 Mbit/s, and for a burst
/// without a rate. Ignores the typical packet size, because the limiter counts the actual sizes.
pub(crate) unsafe extern "C" fn modify_qp_rate_limit(handle: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int {
    status(|| {
        let qp = qp(handle)?;
        let attr = required!(attr);
        let rate_limit = RateLimit { kbps: attr.rate_limit, max_burst: attr.max_burst_sz };
        Ok(qp.modify(&QpAttr { rate_limit, ..QpAttr::default() }, AttrMask::RATE_LIMIT)?)
    })
}

/// `man ibv_query_qp`: fills all attributes, whatever the mask.
pub(crate) unsafe extern "C" fn ibv_query_qp(
    handle: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    status(|| {
        let object = Object::<ibv_qp_ex>::live(handle)?;
        if attr.is_null() || init.is_null() {
            return Err(null(if attr.is_null() { "attr" } else { "init_attr" }));
        }
        let (current, created) = object.inner.qp.query();
        let draining = object.inner.qp.is_draining();
        // SAFETY: neither is NULL; the program passes structures that are valid during the call.
        // `live` found the object, so its structure is alive too.
        unsafe {
            attr.write(ibv_qp_attr { sq_draining: draining.into(), ..to_c(&current, cap_to_c(&created.caps)) });
            let exposed = &*handle;
            init.write(
                copy_fields!(ibv_qp_init_attr from exposed { qp_context, send_cq, recv_cq, srq, qp_type } with {
                    cap: cap_to_c(&created.caps), sq_sig_all: created.sq_sig_all.into(),
                }),
            );
            (&raw mut (*handle).state).write(current.state as c_int);
        }
        Ok(())
    })
}

/// `man ibv_destroy_qp`: fails with EBUSY in a multicast group; waits until every event is
/// acknowledged.
pub(crate) unsafe extern "C" fn ibv_destroy_qp(handle: *mut ibv_qp) -> c_int {
    let release = |inner: &QpInner| {
        inner.qp.check_detached()?;
        // An XRC target may have other handles; dropping the last one destroys it.
        if inner.service != Service::XrcTgt {
            inner.qp.destroy();
        }
        Ok(())
    };
    status(|| Object::<ibv_qp_ex>::destroy_acknowledged(handle, release, |inner| &inner.events))
}

/// `man ibv_query_qp_data_in_order`: 1 without flags, because the device writes bytes in the order
/// of their addresses.
pub(crate) unsafe extern "C" fn ibv_query_qp_data_in_order(handle: *mut ibv_qp, _op: c_int, flags: u32) -> c_int {
    c_int::from(Object::<ibv_qp_ex>::live(handle).is_ok() && flags == 0)
}

/// `man ibv_attach_mcast`. LIDs have no meaning on Ethernet.
pub(crate) unsafe extern "C" fn ibv_attach_mcast(handle: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    status(|| Ok(qp(handle)?.attach_mcast(Gid(required!(gid).raw))?))
}

/// `man ibv_attach_mcast`.
pub(crate) unsafe extern "C" fn ibv_detach_mcast(handle: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    status(|| Ok(qp(handle)?.detach_mcast(Gid(required!(gid).raw))?))
}

/// `IBV_QP_INIT_ATTR_*`: fields of `ibv_qp_init_attr_ex` that the program has set.
pub(crate) const QP_PD: u32 = 1;
pub(crate) const QP_XRCD: u32 = 1 << 1;
const QP_CREATE_FLAGS: u32 = 1 << 2;
const QP_IND_TABLE: u32 = 1 << 4;
const QP_SEND_OPS_FLAGS: u32 = 1 << 6;

/// Returns EINVAL without a domain, EOPNOTSUPP for attributes that the device lacks.
fn check_extended(init: &ibv_qp_init_attr_ex) -> Result<()> {
    let given = |bit| init.comp_mask & bit != 0;
    let flags = if given(QP_CREATE_FLAGS) { init.create_flags } else { 0 };
    let ops = if given(QP_SEND_OPS_FLAGS) { init.send_ops_flags } else { 0 };
    let other = init.comp_mask & !(QP_PD | QP_CREATE_FLAGS | QP_SEND_OPS_FLAGS);
    if other != 0 || flags != 0 || ops & !wr_batch::operations_of(service(init.qp_type)?) != 0 {
        let supported = QP_PD | QP_CREATE_FLAGS | QP_SEND_OPS_FLAGS;
        return Err(undefined::qp_init(EOPNOTSUPP, (init.comp_mask, supported), flags, (ops, service(init.qp_type)?)));
    }
    if given(QP_PD) { Ok(()) } else { Err(undefined::lacks_pd(init.comp_mask)) }
}

pub(crate) unsafe extern "C" fn create_qp_ex(handle: *mut ibv_context, init: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
    pointer(|| {
        context(handle)?;
        let extended = required!(init);
        if extended.qp_type == XRC_RECV && extended.comp_mask & QP_XRCD != 0 {
            return create_target(handle, extended);
        }
        if extended.comp_mask & QP_IND_TABLE != 0 {
            return create_hash_qp(extended);
        }
        check_extended(extended)?;
        let (pd, has_builder) = (extended.pd, extended.comp_mask & QP_SEND_OPS_FLAGS != 0);
        // SAFETY: not NULL; the program passes a structure that is valid during the call, and the
        // extended structure starts with the classic one.
        create(pd, unsafe { &mut *init.cast::<ibv_qp_init_attr>() }, has_builder)
    })
}

/// `comp_mask` of a hash QP, apart from creation flags: domain, table and `rx_hash_conf`.
const MASK_HASH_QP: u32 = QP_PD | QP_IND_TABLE | 1 << 5;

/// Returns the hash of a hash QP. Fails with EOPNOTSUPP for a function or fields that the device
/// lacks.
fn rx_hash(init: &ibv_qp_init_attr_ex) -> Result<RxHash> {
    let conf = &init.rx_hash_conf;
    if conf.rx_hash_function != wq::TOEPLITZ {
        return Err(EOPNOTSUPP);
    }
    if usize::from(conf.rx_hash_key_len) != TOEPLITZ_KEY_LEN || conf.rx_hash_key.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: not NULL; the program passes a key of `rx_hash_key_len` bytes, checked to be this
    // many.
    let key = unsafe { conf.rx_hash_key.cast::<[u8; TOEPLITZ_KEY_LEN]>().read() };
    let fields = HashFields::from_bits(conf.rx_hash_fields_mask).ok_or(EOPNOTSUPP)?;
    Ok(RxHash { key, fields })
}

/// Creates a QP that distributes received frames over the queues of a table (`man
/// ibv_create_qp_ex`).
fn create_hash_qp(init: &ibv_qp_init_attr_ex) -> Result<*mut ibv_qp> {
    if init.comp_mask & !QP_CREATE_FLAGS != MASK_HASH_QP || init.qp_type != RAW_PACKET {
        return Err(EINVAL);
    }
    if init.comp_mask & QP_CREATE_FLAGS != 0 && init.create_flags != 0 {
        return Err(EOPNOTSUPP);
    }
    let table = &Object::<ibv_rwq_ind_table>::live(init.rwq_ind_tbl)?.inner;
    let token = Token::new();
    let qp = pd(init.pd)?.create_hash_qp(table, rx_hash(init)?, token.0)?;
    let classic = copy_fields!(ibv_qp_init_attr from init { qp_context, qp_type } with { ..Default::default() });
    publish(init.pd, &classic, token, QpInner::new(qp, None))
}

/// `IBV_QP_OPEN_ATTR_NUM`, `_XRCD` and `_TYPE`, all required.
const MASK_OPEN_NEEDED: u32 = 1 | 1 << 1 | 1 << 3;
/// `IBV_QP_OPEN_ATTR_CONTEXT`, optional.
const MASK_OPEN_CONTEXT: u32 = 1 << 2;

/// Creates an XRC target (`man ibv_create_qp_ex`).
fn create_target(handle: *mut ibv_context, init: &ibv_qp_init_attr_ex) -> Result<*mut ibv_qp> {
    let token = Token::new();
    let qp = xrcd(init.xrcd)?.create_target(token.0)?;
    Ok(publish_target(handle, init.qp_context, token, qp))
}

/// `man ibv_open_qp`: returns another handle of an XRC target. Fails with EINVAL if the domain has
/// no target of that number.
pub(crate) unsafe extern "C" fn open_qp(handle: *mut ibv_context, attr: *mut ibv_qp_open_attr) -> *mut ibv_qp {
    pointer(|| {
        context(handle)?;
        let attr = required!(attr);
        let is_complete = attr.comp_mask & !MASK_OPEN_CONTEXT == MASK_OPEN_NEEDED;
        if !is_complete || attr.qp_type != XRC_RECV {
            let (given, kind) = (attr.comp_mask, attr.qp_type);
            return Err(invalid(|| {
                format!(
                    "comp_mask is {given:#x}, qp_type {kind}; needed are the bits NUM, XRCD and TYPE, and XRC_RECV 10"
                )
            }));
        }
        let qp = xrcd(attr.xrcd)?.open_target(attr.qp_num)?;
        let qp_context = if attr.comp_mask & MASK_OPEN_CONTEXT != 0 { attr.qp_context } else { null_mut() };
        Ok(publish_target(handle, qp_context, Token::new(), qp))
    })
}

fn publish_target(context: *mut ibv_context, qp_context: *mut c_void, token: Token, qp: Arc<Qp>) -> *mut ibv_qp {
    let base = ibv_qp {
        context,
        qp_context,
        handle: token.short(),
        qp_num: qp.qpn().get(),
        state: qp.state() as c_int,
        qp_type: XRC_RECV,
        ..ibv_qp::ZERO
    };
    Object::publish(token, exposed(base), QpInner::new(qp, None))
}

/// ECE options that the device supports: none.
const ECE_OPTIONS: u32 = 0;

fn vendor_id(handle: *mut ibv_qp) -> Result<u32> {
    qp(handle).map(|qp| qp.pd().context().device().attr().vendor_id)
}

pub(crate) unsafe extern "C" fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    status(|| {
        let vendor_id = vendor_id(qp)?;
        // SAFETY: the program passes NULL or a structure that is valid during the call.
        unsafe { write_out(ece, ibv_ece { vendor_id, options: ECE_OPTIONS, comp_mask: 0 }) }
    })
}

/// `man ibv_set_ece`: clears all options. Fails with EOPNOTSUPP if there is no vendor id, EINVAL
/// for another device's.
pub(crate) unsafe extern "C" fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    status(|| {
        let own = vendor_id(qp)?;
        let requested = required!(mut ece);
        match requested.vendor_id {
            0 => Err(EOPNOTSUPP),
            id if id == own && requested.comp_mask == 0 => {
                requested.options &= ECE_OPTIONS;
                Ok(())
            }
            _ => Err(EINVAL),
        }
    })
}
