//! What a program sets on an id, and asks it.

use super::state::{Id, State};
use crate::cm::address::Address;
use crate::cm::event::{EventData, EventKind};
use crate::cm::options::IdOption;
use crate::cm::route::Path;
use crate::device::Device;
use roxe_base::error::Error;
use roxe_base::limits;
use roxe_transport::cm::Ece;
use roxe_transport::qp::Service;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Id {
    /// Names it anew.
    pub fn set_user(&self, user: u64) {
        self.user.store(user, Ordering::Relaxed);
    }

    /// Puts an event into the channel that no peer has caused (`rdma_write_cm_event`).
    pub fn write_event(&self, kind: EventKind, status: i32, arg: u64) {
        let inner = self.lock();
        self.raise_in(&inner, kind, status, EventData::Arg(arg));
    }

    /// Sets an option. EINVAL: not (any more) possible.
    pub fn set_option(&self, option: IdOption) -> Result<(), Error> {
        let mut inner = self.lock();
        match option {
            IdOption::Tos(tos) => inner.options.tos = Some(tos),
            IdOption::ReuseAddr(reuse) => {
                if inner.state != State::Idle && (!reuse || inner.state == State::Listening) {
                    return Err(Error::invalid("an address that is in use cannot be shared differently"));
                }
                inner.options.reuse = reuse;
            }
            IdOption::AfOnly(af_only) => {
                inner.check(&[State::Idle, State::Bound])?;
                inner.options.af_only = Some(af_only);
            }
            IdOption::AckTimeout(code) => {
                if !matches!(self.service, Service::Rc | Service::XrcIni) || code > 31 {
                    return Err(Error::invalid("an ACK timeout is a code up to 31, of a reliable connection"));
                }
                inner.options.ack_timeout = Some(code);
            }
            IdOption::Path(path) => self.set_path(&mut inner, path)?,
        }
        Ok(())
    }

    /// Sets the vendor options that the next message offers the peer (`rdma_set_local_ece`).
    pub fn set_local_ece(&self, ece: Ece) -> Result<(), Error> {
        self.lock().local_ece = ece;
        Ok(())
    }

    /// The vendor options of the peer (`rdma_get_remote_ece`).
    pub fn remote_ece(&self) -> Ece {
        self.lock().remote_ece
    }

    /// The device it is bound to.
    pub fn device(&self) -> Option<Arc<Device>> {
        self.lock().device_addr.as_ref().map(|device_addr| Arc::clone(&device_addr.device))
    }

    /// The port of the device; 0 without one.
    pub fn port(&self) -> u8 {
        if self.lock().device_addr.is_some() { limits::PORTS } else { 0 }
    }

    /// Its own address, once bound.
    pub fn local_addr(&self) -> Option<Address> {
        self.lock().local
    }

    /// The peer's address, once known.
    pub fn peer_addr(&self) -> Option<Address> {
        self.lock().peer
    }

    /// The path, once resolved or requested.
    pub fn path(&self) -> Option<Path> {
        self.lock().path
    }
}
