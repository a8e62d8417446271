//! The background thread: accepts connections for listeners, looks after UDP sockets, sends
//! keepalives. It runs as long as there is a socket that needs it; a forked child starts its own.

use crate::wait::{self, Waker};
use roxe_provider::lock::Mutex;
use roxe_provider::own_threads::{OwnThread, Wake, started_by_caller};
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// A descriptor that is readable when there is something to do, and a time when there is.
pub(crate) type Wish = (Option<RawFd>, Option<Instant>);

/// What the thread can look after.
pub(crate) trait Serviced: Send + Sync {
    /// On what and until when the background thread of this process sleeps for it; `None` if it has
    /// not to look after it.
    fn wants_service(&self) -> Option<Wish>;

    /// The thread looks after it.
    fn serve(&self, now: Instant);
}

/// Locked before any socket; nobody calls this module with a socket's lock held.
static SERVICE: Mutex<crate::lock::Service, Service> = Mutex::new(Service { members: Vec::new(), running: None });

struct Service {
    members: Vec<Weak<dyn Serviced>>,
    /// The thread, and in which process: it does not outlive a fork.
    running: Option<(u32, Arc<Waker>)>,
}

/// Lets the thread look after `socket` from now on.
///
/// # Errors
/// If it cannot be started.
pub(crate) fn join(socket: &Arc<impl Serviced + 'static>) -> io::Result<()> {
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

/// Lets the thread look at its sockets again: one of them has changed.
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
        let mut fds = vec![wait::waiting_for(waker.fd())];
        let mut deadline = own.look_again_after().map(|after| Instant::now() + after);
        for (fd, due) in members.iter().filter_map(|socket| socket.upgrade()?.wants_service()) {
            fds.extend(fd.map(wait::waiting_for));
            deadline = deadline.into_iter().chain(due).min();
        }
        // Sockets are not kept alive meanwhile. An error is a signal: then everything is looked at,
        // which does no harm.
        let _ = crate::sys::poll(&mut fds, wait::millis_left(deadline));
        waker.clear();
        let now = Instant::now();
        members.iter().filter_map(Weak::upgrade).for_each(|socket| socket.serve(now));
    }
}

/// Who needs the thread; if nobody does, it ends.
fn members() -> Option<Vec<Weak<dyn Serviced>>> {
    let mut service = SERVICE.lock();
    service.members.retain(|member| member.upgrade().is_some_and(|socket| socket.wants_service().is_some()));
    if service.members.is_empty() {
        service.running = None;
        return None;
    }
    Some(service.members.clone())
}
