//! What a memory window is to show: said by a [`MemoryWindow`](crate::MemoryWindow), done by a work
//! request.
//!
//! Touches no device.

use crate::{Access, RemoteAddr};
use roxe_transport::wr::Bind;
use roxe_wire::RKey;

/// A part of a region as a window shows it to peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBinding(pub(crate) Bind);

impl WindowBinding {
    /// What a peer must know to reach the first byte. Tell it when the binding is complete, or with
    /// a SEND on the same queue pair, which starts later anyway.
    pub const fn remote(&self) -> RemoteAddr {
        let addr = if self.0.access.contains(Access::ZERO_BASED) { 0 } else { self.0.addr };
        RemoteAddr { addr, rkey: self.0.rkey }
    }

    /// The key of the window while it is open.
    pub const fn rkey(&self) -> RKey {
        self.0.rkey
    }
}
