//! The engines of this process, each together with its connection manager.
//!
//! The engine knows connection managers and XRC domains by [`Services`] only; that is implemented
//! here, and passes on to [`crate::ib_cm`] and [`crate::xrc_remote`].

use crate::device::Device;
use crate::ib_cm::agent::Agent;
use crate::ib_cm::interface_change;
use crate::ib_cm::session::Session;
use crate::xrc_remote;
use roxe_base::error::Error;
use roxe_base::exit::{Stage, at_exit};
use roxe_base::lock::{Mutex, rank};
use roxe_engine::engine::Engine;
use roxe_engine::engine::Services;
use roxe_net::forward::XrcRequest;
use roxe_transport::cm::Route;
use roxe_transport::time::Instant;
use roxe_wire::cm::Mad;
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The engines of this process by interface index.
pub(crate) static ENGINES: Mutex<rank::Engines, Vec<(u32, WeakRuntime)>> = Mutex::new(Vec::new());

/// The engines of this process; none while a thread forks.
pub(crate) fn all() -> Vec<Runtime> {
    ENGINES.try_lock().map(|engines| alive(&engines)).unwrap_or_default()
}

/// Those of `engines` that anybody has.
pub(crate) fn alive(engines: &[(u32, WeakRuntime)]) -> Vec<Runtime> {
    engines.iter().filter_map(|(_, engine)| engine.upgrade()).collect()
}

/// An engine and its connection manager. As an engine it is used like one.
#[derive(Clone, Debug)]
pub(crate) struct Runtime {
    engine: Arc<Engine>,
    agent: Arc<Agent>,
}

/// A [`Runtime`] for who does not keep it alive.
#[derive(Debug)]
pub(crate) struct WeakRuntime {
    engine: Weak<Engine>,
    agent: Weak<Agent>,
}

/// Acts on what the engine hands to the crate above it.
#[derive(Debug)]
struct Upper {
    agent: Arc<Agent>,
}

impl Runtime {
    /// That of `device` in this process, made if there is none. EINVAL: an environment variable is
    /// not understood.
    pub(crate) fn get(device: &Device) -> Result<Self, Error> {
        let mut engines = ENGINES.lock();
        engines.retain(|(_, engine)| engine.upgrade().is_some());
        let found = engines.iter().find(|(of, _)| *of == device.ifindex()).and_then(|(_, engine)| engine.upgrade());
        if let Some(engine) = found {
            return Ok(engine);
        }
        let engine = Self::new(device)?;
        engines.push((device.ifindex(), engine.downgrade()));
        Ok(engine)
    }

    fn new(device: &Device) -> Result<Self, Error> {
        at_exit(Stage::Shutdown, shut_down);
        let agent = Arc::<Agent>::default();
        let engine = Engine::create(device.adapter(), Arc::new(Upper { agent: Arc::clone(&agent) }))?;
        Ok(Self { engine, agent })
    }

    fn downgrade(&self) -> WeakRuntime {
        WeakRuntime { engine: Arc::downgrade(&self.engine), agent: Arc::downgrade(&self.agent) }
    }

    /// The engine and its further ones.
    pub(crate) fn engines(&self) -> impl Iterator<Item = Arc<Engine>> {
        std::iter::once(&self.engine).chain(self.engine.further()).map(Arc::clone)
    }

    /// Whether it is the same as `other`.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.engine, &other.engine)
    }

    /// The engine, which keeps its connection manager alive.
    pub(crate) fn engine(self) -> Arc<Engine> {
        self.engine
    }

    /// The connection manager.
    pub(crate) fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Runs `verb` under the lock of the connection manager; see [`Agent::run`].
    pub(crate) fn cm<T>(&self, verb: impl FnOnce(&mut Session<'_>) -> T) -> Result<T, Error> {
        self.agent.run(&self.engine, verb)
    }

    /// How many connections and lookups there are, those included that are over but for late
    /// packets.
    pub(crate) fn connections(&self) -> usize {
        self.agent.connections(&self.engine)
    }

    /// In the child of a fork: gives up what belongs to the parent.
    pub(crate) fn abandon(&self) {
        self.engines().for_each(|engine| engine.abandon());
        self.agent.abandon();
    }
}

impl WeakRuntime {
    /// The engine and its connection manager, if anybody has them.
    fn upgrade(&self) -> Option<Runtime> {
        Some(Runtime { engine: self.engine.upgrade()?, agent: self.agent.upgrade()? })
    }
}

impl Deref for Runtime {
    type Target = Engine;

    #[inline]
    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl Services for Upper {
    fn leave_message(&self, engine: &Engine, route: Route, mad: Mad) {
        self.agent.leave_message(engine, route, mad);
    }

    fn leave_deadline(&self, engine: &Engine, deadline: Instant) {
        self.agent.leave_deadline(engine, deadline);
    }

    fn run_connections(&self, engine: &Engine) {
        self.agent.work_off_inbox(engine);
    }

    fn end_connections(&self, engine: &Engine, limit: Duration) {
        self.agent.end_all(engine, limit);
    }

    fn serve_xrc_request(&self, engine: &Engine, request: &XrcRequest, body: &[u8], now: Instant) {
        xrc_remote::serve_xrc_request(engine, request, body, now);
    }

    fn interface_changed(&self, engine: &Engine) {
        interface_change::announce(engine.adapter());
    }
}

/// The process ends: what [`roxe_base::exit`] calls.
fn shut_down() {
    all().iter().flat_map(Runtime::engines).for_each(|engine| engine.shut_down());
}

#[cfg(test)]
mod tests;
