//! librdmacm: the functions of `rdma/rdma_cma.h`, and support for the inline functions of
//! `rdma/rdma_verbs.h`.
//!
//! The provider's identifiers report to channels and never wait. A synchronous identifier has a
//! channel of its own, from which its calls wait for their outcome. Events name identifiers by
//! token, so the event of a destroyed identifier is dropped.

pub(crate) mod addrinfo;
mod connect;
mod devices;
mod endpoint;
mod event;
mod id;
mod lifecycle;
mod queues;
mod resolve;

pub(crate) use addrinfo::{rdma_freeaddrinfo, rdma_getaddrinfo};
pub(crate) use connect::{
    rdma_accept, rdma_connect, rdma_disconnect, rdma_establish, rdma_get_remote_ece, rdma_join_multicast,
    rdma_join_multicast_ex, rdma_leave_multicast, rdma_notify, rdma_reject, rdma_reject_ece, rdma_set_local_ece,
};
pub(crate) use devices::{rdma_free_devices, rdma_get_devices};
pub(crate) use endpoint::{rdma_create_ep, rdma_destroy_ep, rdma_get_request};
pub(crate) use event::{rdma_ack_cm_event, rdma_get_cm_event, rdma_write_cm_event};
pub(crate) use id::{rdma_create_event_channel, rdma_destroy_event_channel};
pub(crate) use lifecycle::{rdma_create_id, rdma_destroy_id, rdma_migrate_id};
pub(crate) use queues::{
    rdma_create_qp, rdma_create_qp_ex, rdma_create_srq, rdma_create_srq_ex, rdma_destroy_qp, rdma_destroy_srq,
    rdma_init_qp_attr,
};
pub(crate) use resolve::{
    rdma_bind_addr, rdma_get_dst_port, rdma_get_src_port, rdma_listen, rdma_query_addrinfo, rdma_resolve_addr,
    rdma_resolve_addrinfo, rdma_resolve_route, rdma_set_option,
};
