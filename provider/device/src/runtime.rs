//! The devices that this process has asked for, and their engines, each together with its
//! connection manager.
//!
//! The engine knows connection managers by [`roxe_engine::engine::Services`] only, which is the
//! [`Agent`].

use crate::device::Device;
use crate::ib_cm::{Agent, Session};
use roxe_base::error::Error;
use roxe_base::exit::{Stage, at_exit};
use roxe_base::lock::{Mutex, rank};
use roxe_engine::engine::Engine;
use std::sync::{Arc, Weak};

/// What earlier calls of [`devices`](crate::devices()) gave out, with their engines and counters.
pub(crate) static KNOWN: Mutex<rank::Devices, Vec<Arc<Device>>> = Mutex::new(Vec::new());

/// The engines of this process by interface index.
pub(crate) static ENGINES: Mutex<rank::Engines, Vec<(u32, WeakRuntime)>> = Mutex::new(Vec::new());

/// The devices that were given out, for the end of the process: nothing while another thread is
/// about to change them.
pub(crate) fn known_devices() -> Vec<Arc<Device>> {
    KNOWN.try_lock().map(|known| known.clone()).unwrap_or_default()
}

/// In the child of a fork: what was counted so far the parent tells.
pub(crate) fn abandon_counts() {
    for device in known_devices() {
        device.adapter().begin_anew();
    }
}

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
        let engine = Engine::create(device.adapter(), Arc::clone(&agent) as _)?;
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
    pub(crate) fn into_engine(self) -> Arc<Engine> {
        self.engine
    }

    /// The first engine of the device.
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
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

/// The process ends: what [`roxe_base::exit`] calls.
fn shut_down() {
    all().iter().flat_map(Runtime::engines).for_each(|engine| engine.shut_down());
}

#[cfg(test)]
mod tests;
