//! The background thread: accepts connections for listeners, serves UDP sockets, sends keepalives.
//! The thread runs while a socket needs it; a forked child starts its own.

use crate::wait::{self, Waker};
use roxe_provider::lock::Mutex;
use roxe_provider::own_threads::{OwnThread, Wake, started_by_caller};
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

/// A descriptor that is readable, and a time, when service is due.
pub(crate) type Wish = (Option<RawFd>, Option<Instant>);

pub(crate) trait Serviced: Send + Sync {
    /// When [`serve`](Self::serve) is due on the background thread; `None` if never.
    fn wants_service(&self) -> Option<Wish>;

    fn serve(&self, now: Instant);
}

/// Locked before any socket; callers hold no socket lock.
static SERVICE: Mutex<crate::lock::Service, Service> = Mutex::new(Service { members: Vec::new(), running: None });

struct Service {
    members: Vec<Weak<dyn Serviced>>,
    /// The thread's waker, and its process: a thread does not survive a fork.
    running: Option<(u32, Arc<Waker>)>,
}

/// Registers `socket` with the thread, and starts the thread if needed.
///
/// # Errors
/// If the thread cannot be started.
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

/// Makes the thread check its sockets again after a change.
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
        // Sockets may be dropped meanwhile. After an error, a signal, serving all is harmless.
        let _ = crate::sys::poll(&mut fds, wait::millis_left(deadline));
        waker.clear();
        let now = Instant::now();
        members.iter().filter_map(Weak::upgrade).for_each(|socket| socket.serve(now));
    }
}

/// The sockets that need the thread; `None` ends it.
fn members() -> Option<Vec<Weak<dyn Serviced>>> {
    let mut service = SERVICE.lock();
    service.members.retain(|member| member.upgrade().is_some_and(|socket| socket.wants_service().is_some()));
    if service.members.is_empty() {
        service.running = None;
        return None;
    }
    Some(service.members.clone())
}
