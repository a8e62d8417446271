//! Event channels: where connections tell what became of the verbs.
//!
//! Touches the provider's event channel. Taking events from it is in `event.rs`.

use crate::Error;
use roxe_provider::cm;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// Where the [`CmId`](crate::cm::CmId)s that were made on it announce their events, in order.
/// Clones are the same channel.
#[derive(Clone, Debug)]
pub struct EventChannel(pub(crate) Arc<cm::Channel>);

impl EventChannel {
    /// Makes one.
    ///
    /// # Errors
    /// [`Error::Resources`] if the process has no descriptor left.
    pub fn create() -> Result<Self, Error> {
        Ok(Self(cm::Channel::create()?))
    }
}

/// Readable while events are pending.
impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// For event loops that want a number; it is open as long as a clone of the channel lives.
impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.0.fd()
    }
}
