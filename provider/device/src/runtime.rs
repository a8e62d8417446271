//! The engine of one device in this process, together with its connection manager.
//!
//! The engine knows connection managers and XRC domains by [`Services`] only; that is implemented here, and passes on to
//! [`crate::cm`] and [`crate::xrc_remote`].

use crate::cm::{self, Agent};
use crate::device::Device;
use crate::{fork, xrc_remote};
use roxe_base::error::Error;
use roxe_engine::engine::Engine;
use roxe_engine::engine::Services;
use roxe_net::forward::XrcRequest;
use roxe_transport::cm::Route;
use roxe_transport::time::Instant;
use roxe_wire::cm::Mad;
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// An engine and its connection manager. As an engine it is used like one.
#[derive(Clone, Debug)]
pub(crate) struct Runtime {
    engine: Arc<Engine>,
    agent: Arc<Agent>,
}

/// The same for who does not keep it alive.
#[derive(Debug)]
pub(crate) struct WeakRuntime {
    engine: Weak<Engine>,
    agent: Weak<Agent>,
}

/// What the engine hands up.
#[derive(Debug)]
struct Upper {
    agent: Arc<Agent>,
}

impl Runtime {
    /// That of `device` in this process. EINVAL: an environment variable is not understood.
    pub(crate) fn get(device: &Device) -> Result<Self, Error> {
        fork::find_or_insert(device.ifindex(), || Self::new(device))
    }

    fn new(device: &Device) -> Result<Self, Error> {
        let agent = Arc::new(Agent::default());
        let engine = Engine::create(device.adapter(), Arc::new(Upper { agent: Arc::clone(&agent) }))?;
        Ok(Self { engine, agent })
    }

    pub(crate) fn downgrade(&self) -> WeakRuntime {
        WeakRuntime { engine: Arc::downgrade(&self.engine), agent: Arc::downgrade(&self.agent) }
    }

    /// Whether it is the same as `other`.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.engine, &other.engine)
    }

    /// The connection manager.
    pub(crate) fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Somebody lets go of it, with no lock held. If nobody else has it, its thread is gone when this returns.
    pub(crate) fn release(self) {
        self.engine.release();
    }

    /// In the child of a fork: gives up what belongs to the parent.
    pub(crate) fn abandon(&self) {
        self.engine.abandon();
        self.agent.abandon();
    }
}

impl WeakRuntime {
    /// It, if anybody has it.
    pub(crate) fn upgrade(&self) -> Option<Runtime> {
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
        cm::follow(engine.adapter());
    }
}

/// The process ends: what [`roxe_base::exit`] calls.
pub(crate) fn shut_down() {
    fork::runtimes().iter().for_each(|runtime| runtime.shut_down());
}

#[cfg(test)]
mod tests;
