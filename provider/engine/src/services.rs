//! What the engine hands to the crate above it: messages of connection managers, requests for XRC queues of this process,
//! changes of the interface.

use crate::engine::Engine;
use roxe_net::forward::XrcRequest;
use roxe_transport::cm::Route;
use roxe_transport::time::Instant;
use roxe_wire::cm::Mad;
use std::fmt::Debug;
use std::time::Duration;

/// Who acts on these. Every call gets the engine that it is about.
pub trait Services: Debug + Send + Sync {
    /// A message for queue pair 1 has come. Called under the lock of the receive side: it is left for
    /// [`Services::run_connections`], which [`Engine::note_connection_work`] asks for.
    fn leave_message(&self, engine: &Engine, route: Route, mad: Mad);

    /// The time has come that [`Engine::add_cm_timer`] was called for; left as a message is.
    fn leave_deadline(&self, engine: &Engine, deadline: Instant);

    /// Works off what was left. Called without any lock.
    fn run_connections(&self, engine: &Engine);

    /// The process ends: peers are told. Takes locks only if it gets them within `limit`.
    fn end_connections(&self, engine: &Engine, limit: Duration);

    /// A target of another process asks for an XRC queue of this one. Called under the lock of the receive side.
    fn serve_xrc_request(&self, engine: &Engine, request: &XrcRequest, body: &[u8], now: Instant);

    /// The interface has changed, and the port with it. Called without any lock.
    fn interface_changed(&self, engine: &Engine);
}
