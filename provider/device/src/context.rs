//! A [`Context`]: one opening of a device, with its memory table and asynchronous events. Objects
//! hold their context; it does not know them.

use crate::device::Device;
use crate::event::{AsyncEvent, AsyncEventKind, EventQueue};
use crate::inventory::Inventory;
use crate::sleepers::watch_unread;
use roxe_base::error::Error;
use roxe_base::limits;
use roxe_base::uses::ObjectId;
use roxe_check::{Event, Object, Tracked, emit, outcome};
use roxe_engine::engine::Engine;
use roxe_memory::table::MemoryTable;
use roxe_observe::adapter::PortObserver;
use roxe_observe::port::{GidEntry, PortAttr, PortChange};
use roxe_wire::{Gid, Pkey};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// One opening of a device.
#[derive(Debug)]
pub struct Context {
    device: Arc<Device>,
    engine: Arc<Engine>,
    memory: Arc<MemoryTable>,
    inventory: Arc<Inventory>,
    events: Arc<EventQueue<AsyncEvent>>,
    /// A descriptor with an identity: programs duplicate it to import the device.
    command: File,
    tracked: Tracked,
}

impl Context {
    /// Closes the device. If nothing else in this process uses it, its threads have ended when this
    /// returns. Call it without locks; dropping the last reference closes too, but does not wait.
    pub fn close(self: Arc<Self>) {
        let engine = Arc::clone(&self.engine);
        drop(self);
        engine.release();
    }

    pub(crate) fn new(device: Arc<Device>, engine: Arc<Engine>) -> Result<Arc<Self>, Error> {
        let (memory, events, command) = (Arc::default(), Arc::new(EventQueue::new()?), command()?);
        let inventory = Inventory::new(device.ifindex(), &memory);
        let tracked = Tracked::new(ObjectId::next(), || Object::Context);
        Ok(Arc::new(Self { device, engine, memory, inventory, events, command, tracked }))
    }

    /// Returns the device of the context.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Returns the attributes of port 1. Fails with EINVAL for any other.
    pub fn port_attr(&self, port: u8) -> Result<PortAttr, Error> {
        check_port(port)?;
        Ok(self.device.port_attr())
    }

    /// Returns the GID at `index`: zero if unused, EINVAL outside the table.
    pub fn gid(&self, port: u8, index: usize) -> Result<Gid, Error> {
        check_port(port)?;
        self.device.adapter().gids().get(index).ok_or_else(|| no_such_index("GID", index))
    }

    /// Returns the used entries of the GID table, in order.
    pub fn gid_entries(&self) -> Vec<GidEntry> {
        self.device.gid_entries()
    }

    /// Returns the P_Key at `index`; there is one.
    pub fn pkey(&self, port: u8, index: usize) -> Result<Pkey, Error> {
        check_port(port)?;
        // clause: PKEY-TABLE
        if index == 0 { Ok(Pkey::DEFAULT) } else { Err(no_such_index("P_Key", index)) }
    }

    /// Returns the descriptor that is readable while asynchronous events are pending; may be polled
    /// and made non-blocking.
    pub fn async_fd(&self) -> RawFd {
        self.events.fd()
    }

    /// Borrows the descriptor of [`Context::async_fd`].
    pub fn async_as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Returns the descriptor that stays open as long as the context and is never readable.
    pub fn cmd_fd(&self) -> RawFd {
        self.command.as_raw_fd()
    }

    /// Returns the device and inode number (`man fstat`) of [`Context::cmd_fd`] and its duplicates;
    /// no other descriptor has them.
    pub fn cmd_identity(&self) -> Result<(u64, u64), Error> {
        let found = self.command.metadata().map_err(|e| Error::os("fstat of the command descriptor failed", &e))?;
        Ok((found.dev(), found.ino()))
    }

    /// Waits for the next asynchronous event. Fails with EAGAIN if the descriptor is non-blocking
    /// and none is pending.
    pub fn next_async_event(&self) -> Result<AsyncEvent, Error> {
        self.events.next().inspect(|_| outcome::took_event())
    }

    /// Returns the descriptor to read a unit from, for a caller that sleeps itself; `None` if an
    /// event is pending. Fails with EAGAIN if `async_fd` is non-blocking and no event is pending.
    pub fn before_async_wait(&self) -> io::Result<Option<RawFd>> {
        self.events.sleep_on()
    }

    /// Returns the next event to a caller of [`Context::before_async_wait`]; `slept` is true if it
    /// has read a unit. `None`: the event is gone, wait again.
    pub fn take_async_event(&self, slept: bool) -> Option<AsyncEvent> {
        self.events.take_next(slept).inspect(|_| outcome::took_event())
    }

    /// Returns an event like [`Context::next_async_event`], but never waits.
    pub fn try_next_async_event(&self) -> Option<AsyncEvent> {
        self.events.take_next(false).inspect(|_| outcome::took_event())
    }

    /// Returns the counters of this device in this process, by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.engine.count_socket_drops();
        self.device.adapter().counters().list()
    }

    pub(crate) fn id(&self) -> ObjectId {
        self.tracked.id()
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn memory(&self) -> &Arc<MemoryTable> {
        &self.memory
    }

    pub(crate) fn inventory(&self) -> &Arc<Inventory> {
        &self.inventory
    }

    pub(crate) fn raise(&self, kind: AsyncEventKind, user_context: u64, source: ObjectId) {
        emit(|| Event::AsyncEventQueued { source, kind: &kind });
        outcome::raised_event();
        let fatal = kind.is_fatal().then_some((source, kind));
        let watch = watch_unread(&self.engine, (&self.events, self.id()), fatal);
        self.events.push(source, AsyncEvent { kind, user_context }, watch);
    }

    pub(crate) fn forget_events(&self, source: ObjectId) {
        outcome::forgot_events(self.events.take_of(source).len());
    }
}

impl PortObserver for Context {
    fn port_changed(&self, change: PortChange) {
        let kind = match change {
            PortChange::Active => AsyncEventKind::PortActive,
            PortChange::Error => AsyncEventKind::PortErr,
            PortChange::Gids => AsyncEventKind::GidChange,
            PortChange::Gone => AsyncEventKind::DeviceFatal,
        };
        self.raise(kind, PORT.into(), ObjectId::next());
    }
}

/// Returns the read end of a pipe without a write end.
fn command() -> Result<File, Error> {
    let (reader, _) = io::pipe().map_err(|e| Error::os("cannot create a pipe", &e))?;
    Ok(File::from(OwnedFd::from(reader)))
}

const PORT: u8 = limits::PORTS;

pub(crate) fn check_port(port: u8) -> Result<(), Error> {
    match port {
        1..=limits::PORTS => Ok(()),
        _ => Err(Error::invalid(format!("port {port} does not exist; the device has port 1"))),
    }
}

fn no_such_index(table: &str, index: usize) -> Error {
    Error::invalid(format!("index {index} is outside the {table} table"))
}

#[cfg(test)]
mod tests {
    use super::*;

    // clause: PKEY-TABLE
    #[test]
    fn context_reports_attributes_one_port_and_one_pkey() {
        let context = crate::testing::context();
        let attr = context.device().attr();
        assert!(attr.vendor_id != 0 && attr.vendor_id != 0x02c9 && attr.node_guid != 0);
        assert!(attr.max_cqe >= 262_144 && attr.max_srq_wr >= 4096 && attr.max_qp_wr >= 16_384);
        assert_eq!(context.port_attr(1).unwrap().state, 4);
        assert_eq!(context.port_attr(2).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(context.port_attr(0).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(context.pkey(1, 0).unwrap(), Pkey::DEFAULT);
        assert_eq!(context.pkey(1, 1).unwrap_err().errno(), libc::EINVAL);
    }

    #[test]
    fn gid_table_can_be_read_to_its_end() {
        let context = crate::testing::context();
        let gids: Vec<_> = (0..16).map(|i| context.gid(1, i).unwrap()).collect();
        assert_eq!(gids[0], std::net::Ipv4Addr::LOCALHOST.into());
        assert!(gids[15].is_zero());
        assert_eq!(context.gid(1, 16).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(context.gid_entries()[0].gid, gids[0]);
    }

    #[test]
    fn events_of_destroyed_object_are_dropped() {
        let context = crate::testing::context();
        let (a, b) = (ObjectId::next(), ObjectId::next());
        context.raise(AsyncEventKind::CommEst, 1, a);
        context.raise(AsyncEventKind::SqDrained, 2, b);
        context.forget_events(a);
        let event = context.next_async_event().unwrap();
        assert_eq!(event, AsyncEvent { kind: AsyncEventKind::SqDrained, user_context: 2 });
    }
}
