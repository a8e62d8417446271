//! Queue pairs: making, changing, asking and destroying them. Posting to them is in `data_path.rs`
//! and `qp_ex.rs`.

use crate::abi::*;
use crate::ah::ah_attr;
use crate::allocator::Resource;
use crate::errno::{EINVAL, Result, null, pointer, status, unsupported};
use crate::object::{Object, Token};
use crate::objects::{QpInner, allocator, context_of, cq, pd, qp};
use crate::srq::optional_srq;
use crate::wr_batch::{Batch, Builder};
use crate::{garbage, qp_ex, rate, tsan};
use core::ffi::c_int;
use roxe_provider::{Access, AttrMask, Context, Qp, QpAttr, QpInit};
use roxe_transport::qp::{MigState, QpCaps, QpConfig, QpState, RateLimit, Service};
use roxe_transport::wr::Av;
use roxe_wire::{Gid, PathMtu, Psn, Qkey, Qpn};
use std::sync::Arc;

/// `IBV_QPT_RC` and `IBV_QPT_UD`.
pub(crate) const RC: c_int = 2;
pub(crate) const UD: c_int = 4;
/// `IBV_QPT_XRC_SEND`.
pub(crate) const XRC_INI: c_int = 9;
/// `IBV_QPT_XRC_RECV`: made in an XRC domain, see `xrc.rs`.
pub(crate) const XRC_RECV: c_int = 10;

/// The call that sets attributes.
const MODIFY: &str = "ibv_modify_qp";

/// Values of `enum ibv_qp_type` that the device has and makes in a protection domain.
pub(crate) fn service(qp_type: c_int) -> Result<Service> {
    match qp_type {
        RC => Ok(Service::Rc),
        3 => Ok(Service::Uc),
        UD => Ok(Service::Ud),
        8 => Ok(Service::Raw),
        XRC_INI => Ok(Service::XrcIni),
        _ => Err(unsupported(|| {
            format!("qp_type is {qp_type}; the device makes RC 2, UC 3, UD 4, RAW_PACKET 8, XRC_SEND 9 and XRC_RECV 10")
        })),
    }
}

fn caps(cap: &ibv_qp_cap) -> QpCaps {
    copy_fields!(QpCaps from cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data })
}

fn cap_to_c(caps: &QpCaps) -> ibv_qp_cap {
    copy_fields!(ibv_qp_cap from caps { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data })
}

/// Makes a QP and writes what it really takes back to `init`.
pub(crate) fn create(handle: *mut ibv_pd, init: &mut ibv_qp_init_attr, extended: bool) -> Result<*mut ibv_qp> {
    let token = Token::new();
    let service = service(init.qp_type)?;
    // An XRC initiator has nothing to receive with, and programs leave those fields empty.
    let receives = service != Service::XrcIni;
    let qp = pd(handle)?.create_qp(QpInit {
        service,
        caps: caps(&init.cap),
        sq_sig_all: init.sq_sig_all != 0,
        send_cq: Arc::clone(cq(init.send_cq)?),
        recv_cq: Arc::clone(cq(if receives { init.recv_cq } else { init.send_cq })?),
        srq: if receives { optional_srq(init.srq)? } else { None },
        user: token.0,
    })?;
    init.cap = cap_to_c(&qp.query().1.caps);
    let builder = extended.then(|| Builder::new(Batch::new(&init.cap, service)));
    publish(handle, init, token, QpInner::new(qp, builder))
}

/// What the program sees of a queue pair.
pub(crate) fn exposed(base: ibv_qp) -> ibv_qp_ex {
    tsan::qp_ex(qp_ex::exposed(base))
}

/// Shows the program a new queue pair.
fn publish(handle: *mut ibv_pd, init: &ibv_qp_init_attr, token: Token, inner: QpInner) -> Result<*mut ibv_qp> {
    let (context, qp_num, state) = (context_of(handle)?, inner.qp.qpn().get(), QpState::Reset as c_int);
    let base = copy_fields!(ibv_qp from init { qp_context, send_cq, recv_cq, srq, qp_type } with {
        context, pd: handle, handle: token.short(), qp_num, state, ..ibv_qp::ZERO
    });
    Object::publish_in(allocator(handle, Resource::Qp)?, token, exposed(base), inner)
}

/// Shows the program a queue pair without queues.
pub(crate) fn publish_hash(init: &ibv_qp_init_attr_ex, token: Token, qp: Arc<Qp>) -> Result<*mut ibv_qp> {
    let classic = copy_fields!(ibv_qp_init_attr from init { qp_context, qp_type } with { ..Default::default() });
    publish(init.pd, &classic, token, QpInner::new(qp, None))
}

/// `man ibv_create_qp`.
pub(crate) unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: NULL or a whole structure of the program.
        let init = unsafe { init.as_mut() }.ok_or_else(|| null("init"))?;
        create(pd, init, false)
    })
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

/// The way that `attr` describes, if `mask` says that it is given.
fn resolve(context: &Context, attr: &ibv_ah_attr, mask: AttrMask, bit: AttrMask) -> Result<Av> {
    if mask.contains(bit) { Ok(context.resolve_av(&ah_attr(attr))?) } else { Ok(Av::default()) }
}

/// The value of a field, if `mask` says that it is given; EINVAL for a number that `convert` does
/// not know, which is none of the enum that `field` comes with.
fn coded<T>(
    (mask, bit): (AttrMask, AttrMask),
    code: c_int,
    convert: fn(u8) -> Option<T>,
    (field, values): (&'static str, &'static str),
) -> Result<Option<T>> {
    if !mask.contains(bit) {
        return Ok(None);
    }
    let unknown = || garbage::refuse(EINVAL, MODIFY, (field, code.cast_unsigned()), values);
    u8::try_from(code).ok().and_then(convert).map(Some).ok_or_else(unknown)
}

/// Attributes as the transport has them. Fields that `mask` does not name may hold anything and are
/// not looked at.
fn from_c(context: &Context, attr: &ibv_qp_attr, mask: AttrMask) -> Result<QpAttr> {
    let state = |code: u8| QpState::from_code(code.into());
    let (states, migrations) =
        ("the values of enum ibv_qp_state", ("path_mig_state", "the values of enum ibv_mig_state"));
    let access = if mask.contains(AttrMask::ACCESS_FLAGS) { attr.qp_access_flags } else { 0 };
    let migrating = (mask, AttrMask::PATH_MIG_STATE);
    let migration = coded(migrating, attr.path_mig_state, MigState::from_code, migrations)?;
    let default = QpAttr::default();
    let mtus = ("path_mtu", "the values of enum ibv_mtu, 1 to 5");
    let mtu = coded((mask, AttrMask::PATH_MTU), attr.path_mtu, PathMtu::from_code, mtus)?;
    Ok(copy_fields!(QpAttr from attr {
        pkey_index, alt_pkey_index, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, timeout, retry_cnt, rnr_retry, alt_timeout,
    } with {
        state: coded((mask, AttrMask::STATE), attr.qp_state, state, ("qp_state", states))?.unwrap_or_default(),
        cur_state: coded((mask, AttrMask::CUR_STATE), attr.cur_qp_state, state, ("cur_qp_state", states))?,
        path_mtu: mtu.unwrap_or(default.path_mtu),
        path_mig_state: migration.unwrap_or_default(),
        qkey: Qkey(attr.qkey),
        rq_psn: Psn::new(attr.rq_psn),
        sq_psn: Psn::new(attr.sq_psn),
        dest_qpn: Qpn::new(attr.dest_qp_num),
        access: Access::from_bits(access)
            .ok_or_else(|| garbage::access(EINVAL, MODIFY, ("qp_access_flags", access)))?,
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

/// An address vector as programs see it; all zero while none is set.
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

/// `man ibv_modify_qp`: on an error nothing has changed.
pub(crate) unsafe extern "C" fn ibv_modify_qp(handle: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    status(|| {
        let qp = qp(handle)?;
        // SAFETY: NULL or a whole structure of the program.
        let attr = unsafe { attr.as_ref() }.ok_or_else(|| null("attr"))?;
        let mask = mask.cast_unsigned();
        let unknown = || garbage::refuse(EINVAL, MODIFY, ("attr_mask", mask), "the bits of enum ibv_qp_attr_mask");
        let mask = AttrMask::from_bits(mask).ok_or_else(unknown)?;
        qp.modify(&from_c(qp.pd().context(), attr, mask)?, mask)?;
        show_state(handle)
    })
}

/// Writes the state that a queue pair is in to where the program reads it.
pub(crate) fn show_state(handle: *mut ibv_qp) -> Result<()> {
    let state = qp(handle)?.state();
    // SAFETY: the field lives as long as the object, and programs only read it.
    unsafe { (&raw mut (*handle).state).write(state as c_int) };
    Ok(())
}

/// `man ibv_modify_qp_rate_limit`: EINVAL before RTS, for less than 1 Mbit/s, and for a burst
/// without a rate. Packets are counted as they are, whatever size is typical.
pub(crate) unsafe extern "C" fn modify_qp_rate_limit(handle: *mut ibv_qp, attr: *mut ibv_qp_rate_limit_attr) -> c_int {
    status(|| {
        let qp = qp(handle)?;
        // SAFETY: NULL or a whole structure of the program.
        let attr = unsafe { attr.as_ref() }.ok_or_else(|| null("attr"))?;
        let rate_limit = RateLimit { kbps: attr.rate_limit, max_burst: attr.max_burst_sz };
        Ok(qp.modify(&QpAttr { rate_limit, ..QpAttr::default() }, AttrMask::RATE_LIMIT)?)
    })
}

/// `man ibv_query_qp`: all attributes, whatever the mask asks for.
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
        let (now, made) = object.inner.qp.query();
        let draining = object.inner.qp.is_draining();
        // SAFETY: neither is NULL; the program passes whole structures, and the QP's own is alive.
        unsafe {
            attr.write(ibv_qp_attr { sq_draining: draining.into(), ..to_c(&now, cap_to_c(&made.caps)) });
            init.write(creation(&*handle, &made));
            (&raw mut (*handle).state).write(now.state as c_int);
        }
        Ok(())
    })
}

/// What a QP was created with.
fn creation(qp: &ibv_qp, made: &QpConfig) -> ibv_qp_init_attr {
    copy_fields!(ibv_qp_init_attr from qp { qp_context, send_cq, recv_cq, srq, qp_type } with {
        cap: cap_to_c(&made.caps), sq_sig_all: made.sq_sig_all.into(),
    })
}

/// `man ibv_destroy_qp`: EBUSY while it is attached to a multicast group; waits until every event
/// is acknowledged.
pub(crate) unsafe extern "C" fn ibv_destroy_qp(handle: *mut ibv_qp) -> c_int {
    let release = |inner: &QpInner| {
        inner.qp.check_detached()?;
        // A target may have other handles: it goes with the last.
        if inner.service != Service::XrcTgt {
            inner.qp.destroy();
        }
        Ok(())
    };
    status(|| Object::<ibv_qp_ex>::destroy_acknowledged(handle, release, |inner| &inner.events))
}

/// `man ibv_query_qp_data_in_order`: 1, because bytes are placed in order of their addresses.
pub(crate) unsafe extern "C" fn ibv_query_qp_data_in_order(handle: *mut ibv_qp, _op: c_int, flags: u32) -> c_int {
    c_int::from(Object::<ibv_qp_ex>::live(handle).is_ok() && flags == 0)
}

/// The queue pair and the group of the two calls below. LIDs have no meaning on Ethernet.
///
/// # Safety
/// `gid` is NULL or valid for reads.
unsafe fn membership<'a>(handle: *mut ibv_qp, gid: *const ibv_gid) -> Result<(&'a Arc<Qp>, Gid)> {
    let qp = qp(handle)?;
    // SAFETY: this function's contract.
    let gid = unsafe { gid.as_ref() }.ok_or_else(|| null("gid"))?;
    Ok((qp, Gid(gid.raw)))
}

/// `man ibv_attach_mcast`.
pub(crate) unsafe extern "C" fn ibv_attach_mcast(handle: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    status(|| {
        // SAFETY: NULL or a whole GID of the program.
        let (qp, gid) = unsafe { membership(handle, gid) }?;
        Ok(qp.attach_mcast(gid)?)
    })
}

/// `man ibv_attach_mcast`.
pub(crate) unsafe extern "C" fn ibv_detach_mcast(handle: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    status(|| {
        // SAFETY: NULL or a whole GID of the program.
        let (qp, gid) = unsafe { membership(handle, gid) }?;
        Ok(qp.detach_mcast(gid)?)
    })
}
