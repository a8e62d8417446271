//! Event channels. The events that come through them are in `event.rs`.

use crate::abi::rdma_event_channel;
use crate::errno::{Result, pointer, silent};
use crate::lock::ChannelTurn;
use crate::object::{Object, Token, exposed};
use core::ptr::null_mut;
use roxe_provider::cm::Channel;
use roxe_provider::lock::Mutex;
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
