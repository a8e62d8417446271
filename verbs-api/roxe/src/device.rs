//! Devices and contexts. The methods of a context that create other objects are in those objects'
//! files.

use crate::lock::SharedContexts;
use crate::{ArgumentError, EnvironmentError, Error, ObjectId};
use roxe_provider as provider;
use roxe_provider::lock::Mutex;
use roxe_transport::wr::Av;
use roxe_wire::Gid;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Weak};

pub use provider::{AhAttr, AsyncEventKind, DeviceAttr, GidEntry, PortAttr};

/// The only port a device has.
const PORT: u8 = 1;

/// Returns the devices of this machine: the loopback interface, or the interfaces in `ROXE_NETDEV`.
///
/// # Errors
/// [`Error::Environment`] if an interface in `ROXE_NETDEV` does not exist. [`Error::Argument`] if
/// `ROXE_NETDEV` lists an interface twice, or a `ROXE_*` variable cannot be parsed.
/// [`Error::Argument`] or [`Error::Environment`] if a file that such a variable names cannot be
/// opened.
pub fn devices() -> Result<DeviceList, Error> {
    Ok(DeviceList(provider::devices()?.into_iter().map(Device).collect()))
}

/// The devices that [`devices`] found. Dereferences to a slice.
#[derive(Clone, Debug)]
pub struct DeviceList(Vec<Device>);

impl DeviceList {
    /// Returns the device of this name, for example `roxe0`.
    ///
    /// # Errors
    /// [`Error::Environment`] if there is none; the text lists the existing devices.
    pub fn by_name(&self, name: &str) -> Result<&Device, Error> {
        let present = || self.iter().map(Device::name).collect::<Vec<_>>().join(", ");
        let none = || EnvironmentError::NoDevice { name: name.into(), present: present() };
        Ok(self.iter().find(|device| device.name() == name).ok_or_else(none)?)
    }
}

impl Deref for DeviceList {
    type Target = [Device];

    fn deref(&self) -> &[Device] {
        &self.0
    }
}

/// A device that can be opened. Clones are the same device.
#[derive(Clone, Debug)]
pub struct Device(pub(crate) Arc<provider::Device>);

impl Device {
    /// Returns the name of the device: `roxe0`, `roxe1`, ... unless a profile or `ROXE_DEVICE_NAME`
    /// sets another.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Returns the network interface of the device.
    pub fn netdev(&self) -> &str {
        self.0.netdev()
    }

    /// Returns the GUID of the device, in host byte order.
    pub fn node_guid(&self) -> u64 {
        self.0.node_guid()
    }

    /// Opens the device. Its sockets are opened later, by the first object that needs them.
    ///
    /// # Errors
    /// [`Error::Resources`] if the process has no free descriptor. [`Error::Argument`] or
    /// [`Error::Environment`] if the file that `ROXE_CAPTURE` names cannot be written.
    pub fn open(&self) -> Result<Context, Error> {
        Ok(Context(self.0.open()?))
    }

    /// Returns the context that all connection ids on this device share; opens it if none is open.
    pub(crate) fn share(&self) -> Result<Context, Error> {
        static SHARED: Mutex<SharedContexts, Vec<(u32, Weak<provider::Context>)>> = Mutex::new(Vec::new());
        let mut shared = SHARED.lock();
        shared.retain(|(_, context)| context.strong_count() > 0);
        if let Some(context) =
            shared.iter().find(|(index, _)| *index == self.0.index()).and_then(|(_, context)| context.upgrade())
        {
            return Ok(Context(context));
        }
        let context = self.open()?;
        shared.push((self.0.index(), Arc::downgrade(&context.0)));
        Ok(context)
    }
}

/// An open device. Objects created from it keep it open. Clones are the same context.
#[derive(Clone, Debug)]
pub struct Context(pub(crate) Arc<provider::Context>);

impl Context {
    /// Opens the first device: the loopback interface unless `ROXE_NETDEV` says otherwise.
    ///
    /// # Errors
    /// Errors of [`devices`] and [`Device::open`].
    pub fn open_first() -> Result<Self, Error> {
        let devices = devices()?;
        let none = || EnvironmentError::NoDevice { name: "at all".into(), present: "none".into() };
        devices.first().ok_or_else(none)?.open()
    }

    /// Returns the device that was opened.
    pub fn device(&self) -> Device {
        Device(Arc::clone(self.0.device()))
    }

    /// Returns the limits and capabilities of the device.
    pub fn attr(&self) -> DeviceAttr {
        self.0.device().attr()
    }

    /// Returns the state and MTU of the port. The port is down if its interface was removed.
    ///
    /// # Errors
    /// None at present.
    pub fn port_attr(&self) -> Result<PortAttr, Error> {
        Ok(self.0.port_attr(PORT)?)
    }

    /// Returns the addresses of the port, IPv4 first.
    pub fn gid_entries(&self) -> Vec<GidEntry> {
        self.0.gid_entries()
    }

    /// Returns the address of the port at `index` of the GID table.
    ///
    /// # Errors
    /// [`Error::Argument`] if the table has no address at `index`; the text lists the used indexes.
    /// [`Error::Environment`] if the table is empty.
    pub fn gid(&self, index: u8) -> Result<Gid, Error> {
        let entries = self.gid_entries();
        if entries.is_empty() {
            return Err(EnvironmentError::NoAddress { netdev: self.0.device().netdev().to_owned() }.into());
        }
        let present = || entries.iter().map(|entry| entry.index.to_string()).collect::<Vec<_>>().join(", ");
        let entry = entries.iter().find(|entry| entry.index == index);
        Ok(entry.ok_or_else(|| ArgumentError::NoGid { index, present: present() })?.gid)
    }

    /// Returns a descriptor that is readable while asynchronous events are pending.
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.0.async_as_fd()
    }

    /// Waits for the next asynchronous event.
    ///
    /// # Errors
    /// [`Error::NotYet`] if a signal interrupts the wait or, with the descriptor in non-blocking
    /// mode, if there is no event ([`Error::is_would_block`]).
    pub fn next_async_event(&self) -> Result<AsyncEvent, Error> {
        Ok(AsyncEvent::new(self.0.next_async_event()?))
    }

    /// Returns the next asynchronous event; `None` if there is none. Never waits.
    pub fn try_next_async_event(&self) -> Option<AsyncEvent> {
        self.0.try_next_async_event().map(AsyncEvent::new)
    }

    /// Returns the address vector of a peer, sent to from entry `sgid_index` of the GID table.
    pub(crate) fn resolve(&self, dgid: Gid, sgid_index: u8) -> Result<Av, Error> {
        let attr = AhAttr { dgid, sgid_index, hop_limit: 64, port: PORT, has_grh: true, ..AhAttr::default() };
        Ok(self.0.resolve_av(&attr)?)
    }
}

/// An asynchronous event of the device, its port, a queue or a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Kind of the event.
    pub kind: AsyncEventKind,
    /// The affected queue or queue pair; `None` for the port or the device.
    pub object: Option<ObjectId>,
}

impl AsyncEvent {
    fn new(event: provider::AsyncEvent) -> Self {
        let of_port = matches!(
            event.kind,
            AsyncEventKind::PortActive
                | AsyncEventKind::PortErr
                | AsyncEventKind::GidChange
                | AsyncEventKind::DeviceFatal
        );
        Self { kind: event.kind, object: (!of_port).then_some(ObjectId(event.user_context)) }
    }
}
