//! What only some cards, or only the libraries of some hosts, offer: connections by librdmacm, XRC,
//! memory windows, multicast groups. A target without them answers EOPNOTSUPP, which makes a case
//! unsupported.

use crate::answer::{Answer, Handle, Refused};
use roxe_wire::Gid;

/// What a connection is asked for or accepted with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// For the peer's program.
    pub private_data: Vec<u8>,
    /// READs and atomics that the far side serves, and that it wants to issue.
    pub depths: [u8; 2],
    /// Retries after loss.
    pub retry_cnt: u8,
    /// Retries after RNR NAK.
    pub rnr_retry: u8,
}

/// An event of the connection manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectionEvent {
    /// As in `enum rdma_cm_event_type`, without `RDMA_CM_EVENT_`.
    pub name: String,
    /// 0, a reason, or a negative errno.
    pub status: i64,
    /// The identifier that it is about; of a request, the new one.
    pub id: Handle,
    /// Of a request, who listened.
    pub listener: Option<Handle>,
    /// What the peer's program says.
    pub private_data: Vec<u8>,
}

fn not_offered<T>(what: &str) -> Answer<T> {
    Err(Refused::unsupported(format!("{what}: not offered here")))
}

/// The verbs and functions of librdmacm, named as they are.
#[allow(missing_docs, unused_variables, reason = "named as the verbs are; nothing is offered by default")]
pub trait Extensions {
    /// Listens at the address of the card; `space` is TCP or UDP. Handle and port.
    fn listen(&mut self, space: &str) -> Answer<(Handle, u16)> {
        not_offered("connection manager")
    }
    /// Asks the near side for a connection to the service at this port.
    fn connect(&mut self, space: &str, port: u16, qp: Handle, terms: &Terms) -> Answer<Handle> {
        not_offered("connection manager")
    }
    /// `state` is how far the queue pair is brought.
    fn accept(&mut self, id: Handle, qp: Handle, state: &str, terms: &Terms) -> Answer<()> {
        not_offered("connection manager")
    }
    fn establish(&mut self, id: Handle, qp: Handle) -> Answer<()> {
        not_offered("connection manager")
    }
    fn reject(&mut self, id: Handle, private_data: &[u8]) -> Answer<()> {
        not_offered("connection manager")
    }
    fn disconnect(&mut self, id: Handle) -> Answer<()> {
        not_offered("connection manager")
    }
    /// COMM_EST was raised.
    fn notify(&mut self, id: Handle) -> Answer<()> {
        not_offered("connection manager")
    }
    fn destroy_id(&mut self, id: Handle) -> Answer<()> {
        not_offered("connection manager")
    }
    /// What has come since the last call.
    fn connection_events(&mut self) -> Answer<Vec<ConnectionEvent>> {
        not_offered("connection manager")
    }
    fn open_xrcd(&mut self) -> Answer<Handle> {
        not_offered("XRC")
    }
    /// Handle and number.
    fn create_xrc_srq(&mut self, pd: Option<Handle>, xrcd: Handle, cq: Handle) -> Answer<(Handle, u32)> {
        not_offered("XRC")
    }
    /// Handle and key.
    fn alloc_window(&mut self, kind: u32, pd: Option<Handle>) -> Answer<(Handle, u32)> {
        not_offered("memory windows")
    }
    /// Binds `length` bytes at `at` of a region; the new key.
    fn bind_window(&mut self, qp: Handle, window: Handle, mr: Handle, bound: Bound) -> Answer<u32> {
        not_offered("memory windows")
    }
    fn set_member(&mut self, qp: Handle, group: Gid, joins: bool) -> Answer<()> {
        not_offered("multicast groups")
    }
}

/// What a window shall show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// First byte of the region.
    pub at: u64,
    /// Bytes.
    pub length: u64,
    /// `enum ibv_access_flags`.
    pub access: u32,
    /// Comes back in the completion.
    pub wr_id: u64,
}
