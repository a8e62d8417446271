//! Start and end of the engine: sockets, slots, the thread; and reset in the child of a fork.

use crate::background;
use crate::engine::{ControlSockets, Engine};
use crate::interceptor::process;
use crate::poller::{Poller, Watch, Woken};
use crate::rx_state::Rx;
use crate::scheduler::Task;
use crate::thread::{JOIN_LIMIT, START_LIMIT, Thread};
use roxe_base::clock;
use roxe_base::error::Error;
use roxe_base::own_threads::{Wake, started_by_caller};
use roxe_net::netlink::LinkEvents;
use roxe_net::port_owners::owner_of_port;
use roxe_net::runtime_dir;
use roxe_net::slot::SlotSocket;
use roxe_net::status::StatusSocket;
use roxe_net::steer::Steering;
use roxe_net::udp::UdpLink;
use roxe_observe::{notice, reasons};
use roxe_wire::Gid;
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Once, Weak};
use std::thread;
use std::time::Duration;

/// Maximum wait for steering to include a new socket: the duration of a measurement while a process
/// does not answer.
const STEERING_TIMEOUT: Duration = Duration::from_millis(100);
const POLL_INTERVAL: Duration = Duration::from_micros(50);

impl Engine {
    /// Starts the engine if needed and opens its addresses. Errors concern the host: its user has
    /// to fix them.
    pub fn start_with_links(&self) -> Result<(), Error> {
        self.start()?;
        if self.links.udp.read().is_empty() {
            let opened = self.scheduler.poller().and_then(|poller| self.open_links(&poller));
            opened.map_err(Error::about_host)?;
        }
        Ok(())
    }

    /// Returns true if the sockets are open in this process.
    pub fn is_started(&self) -> bool {
        self.started.load(Ordering::Acquire)
    }

    /// Opens sockets and starts the thread, unless done in this process.
    pub(crate) fn start(&self) -> Result<(), Error> {
        if self.is_started() { Ok(()) } else { self.start_once().map_err(Error::about_host) }
    }

    fn start_once(&self) -> Result<(), Error> {
        let mut starting = self.starting.lock();
        if self.is_started() {
            return Ok(());
        }
        self.interceptor().map_or(Ok(()), |_| process::resume())?;
        let poller = self.ensure_thread(&mut starting)?;
        // The slot is claimed before the sockets are opened: these may receive packets of other
        // processes, which are forwarded from the slot's mailbox.
        let claimed = self.claim_slot(&mut self.rx.lock(), &poller);
        claimed.inspect_err(|_| self.forget_sockets())?;
        // A queue pair that uses an address gets the error of opening it.
        let _ = self.open_links(&poller);
        self.started.store(true, Ordering::Release);
        drop(starting);
        self.await_steering();
        Ok(())
    }

    /// Waits until the kernel steers packets to this process. Before that it may give them to
    /// another process, which loses them if it exits.
    fn await_steering(&self) {
        let until = clock::now().after(STEERING_TIMEOUT);
        while self.scheduler.due(Task::Steering).is_some() && clock::now() < until {
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Opens `gid` unless it is open.
    pub fn ensure_link(&self, gid: Gid) -> Result<(), Error> {
        self.start()?;
        let starting = self.starting.lock();
        if self.link(gid).is_some() {
            return Ok(());
        }
        let poller = self.scheduler.poller()?;
        self.add_link(gid, &poller).map_err(|e| explain(gid, &e))?;
        drop(starting);
        self.await_steering();
        Ok(())
    }

    /// Returns the poller of the background thread; starts the thread if needed.
    pub(crate) fn ensure_thread(&self, control: &mut Option<ControlSockets>) -> Result<Arc<Poller>, Error> {
        if let Ok(poller) = self.scheduler.poller() {
            return Ok(poller);
        }
        let poller = Poller::new().map_err(|e| Error::os("cannot create an epoll instance", &e))?;
        // Without link events (in a sandbox), the port is read when the device is opened.
        let link_events = LinkEvents::open()
            .and_then(|link_events| poller.watch_for(Woken::LinkEvents, link_events.fd()).map(|()| link_events));
        // One socket serves all engines of the device.
        let status = || {
            runtime_dir::note_start();
            let socket = StatusSocket::open(self.ifindex()).ok()?;
            poller.watch_for(Woken::Status, socket.fd()).ok().map(|()| Arc::new(socket))
        };
        let status = if self.is_first() { status() } else { None };
        let me = Weak::clone(&self.me);
        let thread =
            Thread::start(START_LIMIT, poller, background::prepare, move |thread| background::run(&me, thread))
                .map_err(|e| Error::os("cannot start the background thread", &e))?;
        *control = Some(ControlSockets { link_events: link_events.ok(), status });
        let poller = Arc::clone(thread.poller());
        let started: Arc<dyn Wake> = Arc::clone(&poller) as _;
        started_by_caller(Arc::downgrade(&started));
        *self.scheduler.thread.write() = Some(thread);
        Ok(poller)
    }

    /// Drops a reference to the engine; call without locks. If it was the last, its thread and
    /// those of its further engines have ended on return.
    pub fn release(self: Arc<Self>) {
        let thread = |engine: &Arc<Self>| (Arc::downgrade(engine), engine.scheduler.thread.read().clone());
        let threads: Vec<_> = std::iter::once(&self).chain(self.further()).map(thread).collect();
        drop(self);
        for (engine, thread) in threads {
            if let Some(thread) = thread {
                thread.join_if(JOIN_LIMIT, || engine.strong_count() == 0);
            }
        }
    }

    /// Opens every address of the device. Fails only if none can be opened; other errors are
    /// reported to queue pairs that use the address.
    fn open_links(&self, poller: &Arc<Poller>) -> Result<(), Error> {
        self.refresh_host_addresses();
        let mut failure = None;
        for (_, gid) in self.adapter.gids().used() {
            if let Err(e) = self.add_link(gid, poller) {
                failure.get_or_insert_with(|| explain(gid, &e));
            }
        }
        let links = self.links.udp.read();
        let Some(rcvbuf) = links.iter().map(|link| link.rcvbuf()).min() else {
            let name = self.adapter.netdev();
            return Err(failure.unwrap_or_else(|| Error::new(libc::ENETDOWN, format!("{name} has no address; bring it up with `ip link set {name} up`, or choose another interface with ROXE_NETDEV"))));
        };
        self.flows.set_window(self.config.window, rcvbuf);
        Ok(())
    }

    pub(crate) fn add_link(&self, gid: Gid, poller: &Poller) -> io::Result<()> {
        static NOTIFIED: Once = Once::new();
        let link = UdpLink::open(gid, self.ifindex(), self.config.gso, self.config.gro)?;
        if self.config.gso && link.lacks_segments() {
            let text =
                "the system has no UDP_SEGMENT, so every packet costs a system call; ROXE_GSO=off ends this line";
            NOTIFIED.call_once(|| notice::print(&text));
        }
        let link = Arc::new(link.with_send_room(poller.send_room()).with_rcvbuf(self.config.rcvbuf)?);
        poller.watch(link.fd(), Watch::All)?;
        if self.config.steering {
            let mut rx = self.rx.lock();
            let now = clock::now();
            rx.state.steering.push(Steering::new(Arc::clone(&link), self.ifindex(), now));
            self.publish_steering(&rx.state, now);
        }
        self.links.add(link);
        self.adapter.note_open(gid);
        Ok(())
    }

    pub(crate) fn claim_slot(&self, rx: &mut Rx, poller: &Poller) -> Result<(), Error> {
        let claim = |e| Error::os("cannot claim a range of queue pair numbers", &e);
        let socket = SlotSocket::claim(self.ifindex()).map_err(claim)?;
        poller.watch(socket.fd(), Watch::All).map_err(claim)?;
        reasons::create_file(self.ifindex(), socket.slot());
        self.table.add_slot(socket.slot());
        self.rings.add_own(socket.slot());
        rx.state.slots.push(socket);
        Ok(())
    }

    /// Closes all sockets and cuts off the queue pairs.
    fn forget_sockets(&self) {
        self.rx.lock().clear();
        self.table.drain().iter().for_each(|qp| _ = qp.cut_off());
        self.clear();
    }

    /// Resets the engine in the child of a fork. The next opening of the device starts the thread
    /// again, the next queue pair the sockets.
    pub fn abandon(&self) {
        self.started.store(false, Ordering::Release);
        *self.starting.lock() = None;
        if let Some(thread) = self.scheduler.thread.write().take() {
            thread.poller().close();
        }
        self.forget_sockets();
        self.scheduler.presence.abandon();
    }
}

/// Returns the error for an address that cannot be opened, with advice.
pub(crate) fn explain(gid: Gid, cause: &io::Error) -> Error {
    let address = gid.to_ip();
    match cause.raw_os_error() {
        Some(errno @ libc::EADDRINUSE) => {
            let whose = owner_of_port(gid);
            let whose = whose.unwrap_or_else(|| "another user, or a program that does not share it".to_owned());
            Error::host(
                errno,
                format!(
                    "UDP port 4791 of {address} belongs to {whose}; \
                     stop that program, or choose another interface with ROXE_NETDEV"
                ),
            )
        }
        Some(errno @ libc::EADDRNOTAVAIL) => {
            Error::new(errno, format!("{address} is no longer an address of this host; query the GID table again"))
        }
        _ => Error::os(format!("cannot open UDP port 4791 of {address}"), cause),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::private_engine;
    use roxe_base::config::config;

    /// Starts an engine of one test that follows its interface; returns it and its thread.
    fn engine() -> (Arc<Engine>, Arc<Thread>) {
        let engine = private_engine(config().unwrap());
        engine.watch();
        let thread = engine.scheduler.thread.read().clone().unwrap();
        (engine, thread)
    }

    #[test]
    fn last_release_ends_thread() {
        for _ in 0..200 {
            let (engine, thread) = engine();
            let other = Arc::clone(&engine);
            engine.release();
            assert_eq!(Arc::strong_count(&thread), 3, "the engine, the thread and this test hold it");
            other.scheduler.kick();
            other.release();
            assert_eq!(Arc::strong_count(&thread), 1, "no other thread holds it");
        }
    }
}
