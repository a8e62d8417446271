//! librdmacm: the functions of `rdma/rdma_cma.h`, and what the inline functions of
//! `rdma/rdma_verbs.h` need.
//!
//! Identifiers of the provider report to channels only and never wait; what waits is here: a
//! synchronous identifier has a channel of its own, and its calls take their outcome from it.
//! Events know identifiers by the token of their object, so an event of one that is gone finds
//! nothing.
//!
//! - `channel.rs`: channels; `id.rs`: the identifier and what programs read in it; `event.rs`:
//!   events; `lifecycle.rs`: from making an identifier to destroying it;
//! - `devices.rs`: open devices and what identifiers share on them; `address.rs`, `addrinfo.rs`:
//!   addresses;
//! - `resolve.rs`, `connect.rs`, `endpoint.rs`, `queues.rs`, `multicast.rs`, `options.rs`,
//!   `ece.rs`: the calls.

pub(crate) mod address;
mod addrinfo;
mod channel;
mod connect;
mod devices;
mod ece;
mod endpoint;
mod event;
mod id;
mod lifecycle;
mod multicast;
mod options;
mod queues;
mod resolve;

pub(crate) use addrinfo::{rdma_freeaddrinfo, rdma_getaddrinfo};
pub(crate) use channel::{rdma_create_event_channel, rdma_destroy_event_channel};
pub(crate) use connect::{
    rdma_accept, rdma_connect, rdma_disconnect, rdma_establish, rdma_notify, rdma_reject, rdma_reject_ece,
};
pub(crate) use devices::{rdma_free_devices, rdma_get_devices};
pub(crate) use ece::{rdma_get_remote_ece, rdma_set_local_ece};
pub(crate) use endpoint::{rdma_create_ep, rdma_destroy_ep, rdma_get_request};
pub(crate) use event::{rdma_ack_cm_event, rdma_get_cm_event, rdma_write_cm_event};
pub(crate) use lifecycle::{rdma_create_id, rdma_destroy_id, rdma_migrate_id};
pub(crate) use multicast::{rdma_join_multicast, rdma_join_multicast_ex, rdma_leave_multicast};
pub(crate) use options::rdma_set_option;
pub(crate) use queues::{
    rdma_create_qp, rdma_create_qp_ex, rdma_create_srq, rdma_create_srq_ex, rdma_destroy_qp, rdma_destroy_srq,
    rdma_init_qp_attr,
};
pub(crate) use resolve::{
    rdma_bind_addr, rdma_get_dst_port, rdma_get_src_port, rdma_listen, rdma_query_addrinfo, rdma_resolve_addr,
    rdma_resolve_addrinfo, rdma_resolve_route,
};
