//! A [`Context`]: one opening of a device, with its memory table and its asynchronous events.
//!
//! Knows none of the objects that are created in it; those that hold it are in files of their own,
//! with the methods of a context that create them. Touches a descriptor and the engine.

use crate::device::Device;
use crate::event::{AsyncEvent, AsyncEventKind, EventQueue};
use crate::sleepers::watch_unread;
use roxe_base::error::Error;
use roxe_base::limits;
use roxe_base::uses::ObjectId;
use roxe_check::{Event, Made, Tracked, tell};
use roxe_engine::adapter::PortObserver;
use roxe_engine::engine::Engine;
use roxe_engine::port::{GidEntry, PortAttr, PortChange};
use roxe_memory::table::MemoryTable;
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
    events: Arc<EventQueue<AsyncEvent>>,
    /// Only there to be a descriptor with an identity: programs duplicate it and import the device
    /// by the copy.
    command: File,
    tracked: Tracked,
}

impl Context {
    /// Ends the use of the device. If nothing else in this process uses it, nothing of it runs any
    /// more when this returns. To be called with no lock held that anything of the device may need;
    /// dropping the last reference closes as well, but does not wait.
    pub fn close(self: Arc<Self>) {
        let engine = Arc::clone(&self.engine);
        drop(self);
        engine.release();
    }

    /// An opening of `device`, whose engine in this process is `engine`.
    pub(crate) fn new(device: Arc<Device>, engine: Arc<Engine>) -> Result<Arc<Self>, Error> {
        let (memory, events, command) = (Arc::default(), Arc::new(EventQueue::new()?), command()?);
        let tracked = Tracked::new(ObjectId::next(), || Made::Context);
        Ok(Arc::new(Self { device, engine, memory, events, command, tracked }))
    }

    /// The device that was opened.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Attributes of port 1; EINVAL for any other.
    pub fn port_attr(&self, port: u8) -> Result<PortAttr, Error> {
        check_port(port)?;
        Ok(self.device.port_attr())
    }

    /// The GID at `index`: all zero in a hole, EINVAL outside the table.
    pub fn gid(&self, port: u8, index: usize) -> Result<Gid, Error> {
        check_port(port)?;
        self.device.adapter().gids().get(index).ok_or_else(|| no_such_index("GID", index))
    }

    /// The used entries of the GID table, in order.
    pub fn gid_entries(&self) -> Vec<GidEntry> {
        self.device.gid_entries()
    }

    /// The P_Key at `index`; there is one.
    pub fn pkey(&self, port: u8, index: usize) -> Result<Pkey, Error> {
        check_port(port)?;
        // clause: PKEY-TABLE
        if index == 0 { Ok(Pkey::DEFAULT) } else { Err(no_such_index("P_Key", index)) }
    }

    /// Readable while asynchronous events are pending; may be polled and made non-blocking.
    pub fn async_fd(&self) -> RawFd {
        self.events.fd()
    }

    /// The descriptor of [`Context::async_fd`], borrowed.
    pub fn async_as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// A descriptor that stays open as long as the context and is never readable.
    pub fn cmd_fd(&self) -> RawFd {
        self.command.as_raw_fd()
    }

    /// Device and inode number (`man fstat`) of the descriptor and its duplicates; no other
    /// descriptor has them.
    pub fn cmd_identity(&self) -> Result<(u64, u64), Error> {
        let found = self.command.metadata().map_err(|e| Error::os("cannot ask about the command descriptor", &e))?;
        Ok((found.dev(), found.ino()))
    }

    /// Waits for the next asynchronous event; EAGAIN if `async_fd` is non-blocking and none is
    /// pending.
    pub fn next_async_event(&self) -> Result<AsyncEvent, Error> {
        self.events.next()
    }

    /// For a caller that sleeps itself: the descriptor of which a unit is to be read, `None` if an
    /// event is pending.
    ///
    /// # Errors
    /// EAGAIN if the program has made `async_fd` non-blocking and nothing is pending.
    pub fn before_async_wait(&self) -> io::Result<Option<RawFd>> {
        self.events.sleep_on()
    }

    /// The next asynchronous event for a caller of [`Context::before_async_wait`] that has `slept`,
    /// by reading a unit, or did not have to. `None`: there is no event any more, go on waiting.
    pub fn take_async_event(&self, slept: bool) -> Option<AsyncEvent> {
        self.events.take_next(slept)
    }

    /// As [`Context::next_async_event`], but never waits, whatever the mode of `async_fd`.
    pub fn try_next_async_event(&self) -> Option<AsyncEvent> {
        self.events.take_next(false)
    }

    /// Everything counted so far on this device in this process, by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.engine.count_socket_drops();
        self.device.adapter().counters().list()
    }

    /// Names it in what the checker is told.
    pub(crate) fn id(&self) -> ObjectId {
        self.tracked.id()
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn memory(&self) -> &Arc<MemoryTable> {
        &self.memory
    }

    /// Queues an asynchronous event of the object `source`, whose token is `user`.
    pub(crate) fn raise(&self, kind: AsyncEventKind, user: u64, source: ObjectId) {
        tell(|| Event::Raised { source, kind: &kind });
        let fatal = kind.is_fatal().then_some((source, kind));
        let watch = watch_unread(&self.engine, (&self.events, self.id()), fatal);
        self.events.push(source, AsyncEvent { kind, user }, watch);
    }

    /// Forgets the pending events of an object that is destroyed.
    pub(crate) fn forget_events(&self, source: ObjectId) {
        self.events.forget(source);
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

/// One end of a pipe that nobody writes to.
fn command() -> Result<File, Error> {
    let (reader, _) = io::pipe().map_err(|e| Error::os("cannot create a pipe", &e))?;
    Ok(File::from(OwnedFd::from(reader)))
}

/// The port of every device, as events name it.
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
    fn a_context_reports_its_attributes_one_port_and_one_pkey() {
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
    fn the_gid_table_can_be_walked_to_its_end() {
        let context = crate::testing::context();
        let gids: Vec<_> = (0..16).map(|i| context.gid(1, i).unwrap()).collect();
        assert_eq!(gids[0], std::net::Ipv4Addr::LOCALHOST.into());
        assert!(gids[15].is_zero());
        assert_eq!(context.gid(1, 16).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(context.gid_entries()[0].gid, gids[0]);
    }

    #[test]
    fn events_of_a_destroyed_object_are_forgotten() {
        let context = crate::testing::context();
        let (a, b) = (ObjectId::next(), ObjectId::next());
        context.raise(AsyncEventKind::CommEst, 1, a);
        context.raise(AsyncEventKind::SqDrained, 2, b);
        context.forget_events(a);
        let event = context.next_async_event().unwrap();
        assert_eq!(event, AsyncEvent { kind: AsyncEventKind::SqDrained, user: 2 });
    }
}
