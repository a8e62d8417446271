//! What is the same for all connections of a device. Pure data.

use roxe_wire::cm::{Guid, TimeCode};

/// What is the same for all connections of a device.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The node GUID.
    pub guid: Guid,
    /// How long the device may take to acknowledge a packet.
    pub ack_delay: TimeCode,
    /// How long a peer that repeats itself is told to wait for our program.
    pub service_timeout: TimeCode,
    /// The upper 12 bits of every id that the machine gives, so that those of several machines at
    /// one address differ; see [`CommId::prefix`](roxe_wire::cm::CommId::prefix). The rest is
    /// unpredictable.
    pub prefix: u16,
    /// The most connections and lookups, those included that are in TimeWait.
    pub max_connections: usize,
}

impl Settings {
    /// The settings of rdma_cm over rxe, and room for 65,536 connections.
    pub const fn new(guid: Guid) -> Self {
        Self {
            guid,
            ack_delay: TimeCode::new(15),
            service_timeout: TimeCode::new(24),
            prefix: 0,
            max_connections: 1 << 16,
        }
    }
}
