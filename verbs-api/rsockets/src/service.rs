//! The background thread: accepts connections for listeners, serves UDP sockets, sends keepalives.
//! It runs while a socket needs it. The child of a fork starts a thread of its own.

use crate::wait::{self, Waker};
use roxe_provider::lock::Mutex;
use roxe_provider::own_threads::{OwnThread, Wake, started_by_caller};
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Descriptor and time: service is due once the descriptor is readable or the time has passed.
pub(crate) type ServiceDue = (Option<RawFd>, Option<Instant>);

pub(crate) trait Serviced: Send + Sync {
    /// Returns when the background thread has to call [`serve`](Self::serve); `None` if never.
    fn service_due(&self) -> Option<ServiceDue>;

    fn serve(&self, now: Instant);
}

/// Locked before the lock of any socket, so callers must not hold a socket lock.
static SERVICE: Mutex<crate::lock::Service, Service> = Mutex::new(Service { members: Vec::new(), running: None });

struct Service {
    members: Vec<Weak<dyn Serviced>>,
    /// Process id and waker of the thread. The id differs in the child of a fork, which does not
    /// have the thread.
    running: Option<(u32, Arc<Waker>)>,
}

/// Registers `socket` with the background thread, and starts the thread if needed.
///
/// # Errors
/// If the thread cannot be started.
pub(crate) fn register(socket: &Arc<impl Serviced + 'static>) -> io::Result<()> {
    let mut service = SERVICE.lock();
    if !service.members.iter().any(|member| std::ptr::addr_eq(member.as_ptr(), Arc::as_ptr(socket))) {
        service.members.push(Arc::downgrade(socket) as Weak<dyn Serviced>);
    }
    match &service.running {
        Some((pid, waker)) if *pid == std::process::id() => waker.wake(),
        _ => {
            let waker = Arc::new(Waker::new()?);
            let own = Arc::clone(&waker);
            std::thread::Builder::new().name("roxe-rsocket".into()).spawn(move || run(&own))?;
            let started: Arc<dyn Wake> = Arc::clone(&waker) as _;
            started_by_caller(Arc::downgrade(&started));
            service.running = Some((std::process::id(), waker));
        }
    }
    Ok(())
}

/// Makes the thread read again when its sockets are due, after a change of one.
pub(crate) fn wake() {
    if let Some((_, waker)) = &SERVICE.lock().running {
        waker.wake();
    }
}

impl Wake for Waker {
    fn wake(&self) {
        Self::wake(self);
    }
}

fn run(waker: &Waker) {
    let own = OwnThread::begin();
    while let Some(members) = members().filter(|_| !own.is_left_over()) {
        let mut fds = vec![wait::pollin_entry(waker.fd())];
        let mut deadline = own.look_again_after().map(|after| Instant::now() + after);
        for (fd, due) in members.iter().filter_map(|socket| socket.upgrade()?.service_due()) {
            fds.extend(fd.map(wait::pollin_entry));
            deadline = deadline.into_iter().chain(due).min();
        }
        // The only error is EINTR, after a signal. Serving sockets without an event is harmless.
        let _ = crate::sys::poll(&mut fds, wait::millis_left(deadline));
        waker.clear();
        let now = Instant::now();
        members.iter().filter_map(Weak::upgrade).for_each(|socket| socket.serve(now));
    }
}

/// Returns the sockets that need the thread; `None` if there are none and the thread must end.
fn members() -> Option<Vec<Weak<dyn Serviced>>> {
    let mut service = SERVICE.lock();
    service.members.retain(|member| member.upgrade().is_some_and(|socket| socket.service_due().is_some()));
    if service.members.is_empty() {
        service.running = None;
        return None;
    }
    Some(service.members.clone())
}
