//! Contexts: opening and closing a device, and the tables of functions that the headers call through a context.

use crate::abi::{ABI_EXTENDED, ibv_context, ibv_context_ops, ibv_device, verbs_context};
use crate::errno::{Result, pointer, zero};
use crate::object::{Object, Token};
use crate::objects::ContextInner;
use crate::{
    advise, counters, cq, create_ex, data_path, device, dm, domain, flow, memory, qp, query, tag_matching, tsan,
    window, wq, xrc,
};
use core::ffi::c_int;
use std::sync::Arc;

/// `man ibv_open_device`.
pub(crate) unsafe extern "C" fn ibv_open_device(handle: *mut ibv_device) -> *mut ibv_context {
    pointer(|| open(handle))
}

/// A new context of a device.
pub(crate) fn open(handle: *mut ibv_device) -> Result<*mut ibv_context> {
    let context = device::device(handle)?.open().inspect_err(|error| eprintln!("roxe: {error}"))?;
    Ok(Object::publish(Token::new(), exposed(handle, &context), ContextInner { context, _imported: None }))
}

/// `man ibv_close_device`. Objects that the program leaves behind keep the engine going until the process ends.
pub(crate) unsafe extern "C" fn ibv_close_device(handle: *mut ibv_context) -> c_int {
    zero(|| {
        let context = Arc::clone(&Object::<verbs_context>::retire(handle)?.inner.context);
        context.close();
        Ok(())
    })
}

/// What the program sees. An empty slot makes the header answer EOPNOTSUPP.
pub(crate) fn exposed(device: *mut ibv_device, context: &roxe_provider::Context) -> verbs_context {
    verbs_context {
        query_port: Some(query::query_port),
        advise_mr: Some(advise::advise_mr),
        alloc_null_mr: Some(memory::alloc_null_mr),
        read_counters: Some(counters::read_counters),
        attach_counters_point_flow: Some(counters::attach_counters_point_flow),
        create_counters: Some(counters::create_counters),
        destroy_counters: Some(counters::destroy_counters),
        reg_dm_mr: Some(dm::reg_dm_mr),
        alloc_dm: Some(dm::alloc_dm),
        free_dm: Some(dm::free_dm),
        modify_qp_rate_limit: Some(qp::modify_qp_rate_limit),
        alloc_parent_domain: Some(domain::alloc_parent_domain),
        dealloc_td: Some(domain::dealloc_td),
        alloc_td: Some(domain::alloc_td),
        modify_cq: Some(cq::modify_cq),
        post_srq_ops: Some(tag_matching::post_srq_ops),
        destroy_rwq_ind_table: Some(wq::destroy_rwq_ind_table),
        create_rwq_ind_table: Some(wq::create_rwq_ind_table),
        destroy_wq: Some(wq::destroy_wq),
        modify_wq: Some(wq::modify_wq),
        create_wq: Some(wq::create_wq),
        query_rt_values: Some(query::query_rt_values),
        create_cq_ex: Some(cq::create_cq_ex),
        query_device_ex: Some(query::query_device_ex),
        destroy_flow: Some(flow::destroy_flow),
        create_flow: Some(flow::create_flow),
        open_qp: Some(xrc::open_qp),
        create_qp_ex: Some(create_ex::create_qp_ex),
        get_srq_num: Some(xrc::get_srq_num),
        create_srq_ex: Some(create_ex::create_srq_ex),
        open_xrcd: Some(xrc::open_xrcd),
        close_xrcd: Some(xrc::close_xrcd),
        sz: size_of::<verbs_context>(),
        context: ibv_context {
            device,
            ops: tsan::ops(OPS),
            cmd_fd: context.cmd_fd(),
            async_fd: context.async_fd(),
            num_comp_vectors: context.attr().num_comp_vectors.cast_signed(),
            abi_compat: ABI_EXTENDED,
            ..ibv_context::ZERO
        },
        ..verbs_context::ZERO
    }
}

/// The data path.
const OPS: ibv_context_ops = ibv_context_ops {
    alloc_mw: Some(window::alloc_mw),
    bind_mw: Some(window::bind_mw),
    dealloc_mw: Some(window::dealloc_mw),
    poll_cq: Some(data_path::poll_cq),
    req_notify_cq: Some(data_path::req_notify_cq),
    post_srq_recv: Some(data_path::post_srq_recv),
    post_send: Some(data_path::post_send),
    post_recv: Some(data_path::post_recv),
    ..ibv_context_ops::ZERO
};
