//! librdmacm: the functions of `rdma/rdma_cma.h`, with support for `rdma/rdma_verbs.h`.
//!
//! The provider's identifiers report events to channels and never wait. A synchronous identifier
//! has a channel of its own; its calls wait for the event on that channel. Events name identifiers
//! by token, so the event of a destroyed identifier is dropped.

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
pub(crate) use {connect::*, devices::*, endpoint::*, event::*, id::*, lifecycle::*, queues::*, resolve::*};
