//! Devices and engines of this process. A [`Runtime`] is an engine with its connection manager,
//! which the engine only knows as [`roxe_engine::engine::Services`].

use crate::device::Device;
use crate::ib_cm::{Agent, Session};
use roxe_base::error::Error;
use roxe_base::exit::{Stage, at_exit};
use roxe_base::lock::{Mutex, rank};
use roxe_engine::engine::Engine;
use std::sync::{Arc, Weak};

/// Devices returned by earlier calls of [`devices`](crate::devices()).
pub(crate) static KNOWN: Mutex<rank::Devices, Vec<Arc<Device>>> = Mutex::new(Vec::new());

pub(crate) static ENGINES: Mutex<rank::Engines, Vec<(u32, WeakRuntime)>> = Mutex::new(Vec::new());

/// Devices of this process, for its end; none while another thread changes the list.
pub(crate) fn known_devices() -> Vec<Arc<Device>> {
    KNOWN.try_lock().map(|known| known.clone()).unwrap_or_default()
}

/// Resets the counters in the child of a fork; the parent reports what they counted.
pub(crate) fn abandon_counts() {
    for device in known_devices() {
        device.adapter().reset_after_fork();
    }
}

/// Engines of this process; none while a thread forks.
pub(crate) fn all() -> Vec<Runtime> {
    ENGINES.try_lock().map(|engines| alive(&engines)).unwrap_or_default()
}

/// Engines that are still in use.
pub(crate) fn alive(engines: &[(u32, WeakRuntime)]) -> Vec<Runtime> {
    engines.iter().filter_map(|(_, engine)| engine.upgrade()).collect()
}

#[derive(Clone, Debug)]
pub(crate) struct Runtime {
    engine: Arc<Engine>,
    agent: Arc<Agent>,
}

#[derive(Debug)]
pub(crate) struct WeakRuntime {
    engine: Weak<Engine>,
    agent: Weak<Agent>,
}

impl Runtime {
    /// Returns the engine of `device` in this process, created if there is none. Fails with EINVAL
    /// if an environment variable cannot be parsed.
    pub(crate) fn get(device: &Device) -> Result<Self, Error> {
        let mut engines = ENGINES.lock();
        engines.retain(|(_, engine)| engine.upgrade().is_some());
        let found =
            engines.iter().find(|(ifindex, _)| *ifindex == device.ifindex()).and_then(|(_, engine)| engine.upgrade());
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

    /// Returns all engines of the device, the first one first.
    pub(crate) fn engines(&self) -> impl Iterator<Item = Arc<Engine>> {
        std::iter::once(&self.engine).chain(self.engine.further()).map(Arc::clone)
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.engine, &other.engine)
    }

    /// Returns the engine, which keeps the connection manager alive.
    pub(crate) fn into_engine(self) -> Arc<Engine> {
        self.engine
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn agent(&self) -> &Agent {
        &self.agent
    }

    pub(crate) fn cm<T>(&self, verb: impl FnOnce(&mut Session<'_>) -> T) -> Result<T, Error> {
        self.agent.run(&self.engine, verb)
    }

    pub(crate) fn connections(&self) -> usize {
        self.agent.connections(&self.engine)
    }

    /// Drops sockets and connections of the parent in the child of a fork.
    pub(crate) fn abandon(&self) {
        self.engines().for_each(|engine| engine.abandon());
        self.agent.abandon();
    }
}

impl WeakRuntime {
    fn upgrade(&self) -> Option<Runtime> {
        Some(Runtime { engine: self.engine.upgrade()?, agent: self.agent.upgrade()? })
    }
}

fn shut_down() {
    all().iter().flat_map(Runtime::engines).for_each(|engine| engine.shut_down());
}

#[cfg(test)]
mod tests;
