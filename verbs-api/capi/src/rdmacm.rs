//! librdmacm: the functions of `rdma/rdma_cma.h`, and what the inline functions of
//! `rdma/rdma_verbs.h` need.
//!
//! Identifiers of the provider report to channels only and never wait; what waits is here: a
//! synchronous identifier has a channel of its own, and its calls take their outcome from it.
//! Events know identifiers by the token of their object, so an event of one that is gone finds
//! nothing.
//!
//! - `id.rs`: channels, the identifier and what programs read in it; `event.rs`: events;
//!   `lifecycle.rs`: from making an identifier to destroying it;
//! - `devices.rs`: open devices and what identifiers share on them; `addrinfo.rs`: addresses;
//! - `resolve.rs`: addresses, ways and options; `connect.rs`: connections and groups;
//!   `endpoint.rs`, `queues.rs`: the calls that do several of these, and queues.

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
