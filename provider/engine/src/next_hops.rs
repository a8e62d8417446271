//! Resolution of route and neighbour before a queue pair or an address handle gets an address, as
//! the kernel does for hardware, so that verbs fail early. Waits only where stated, without a lock.

use crate::engine::Engine;
use roxe_base::error::Error;
use roxe_net::netlink::NextHop;
use roxe_transport::cm::Route;
use std::io;
use std::time::{Duration, Instant};

/// Longest wait for a neighbour before the verb fails.
const NEIGHBOUR_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which a resolved next hop is trusted.
const FRESH: Duration = Duration::from_secs(1);
const CAPACITY: usize = 1024;

impl Engine {
    /// Waits up to a second until packets can leave on `route`. Errors: ENETUNREACH, EHOSTUNREACH,
    /// EACCES if there is no route; ETIMEDOUT if the neighbour does not answer.
    pub fn await_next_hop(&self, route: Route) -> Result<(), Error> {
        let Some(mut hop) = self.find_next_hop(route)? else { return Ok(()) };
        if !hop.wait(Instant::now() + NEIGHBOUR_TIMEOUT) {
            return Err(no_answer(route, &hop));
        }
        self.note_next_hop(route);
        Ok(())
    }

    /// The next hop still to be resolved on `route`; `None` if packets can leave. Errors as
    /// [`Engine::await_next_hop`], except ETIMEDOUT.
    pub fn find_next_hop(&self, route: Route) -> Result<Option<NextHop>, Error> {
        let Route { local, remote } = route;
        let is_fresh = || self.links.next_hops.lock().get(&(local, remote)).is_some_and(|at| at.elapsed() < FRESH);
        if self.links.reaches_this_host(remote) || is_fresh() {
            return Ok(None);
        }
        let found = NextHop::find(local, remote, self.ifindex()).map_err(|e| no_route(route, &e))?;
        if found.is_none() {
            self.note_next_hop(route);
        }
        Ok(found)
    }

    /// Notes that packets can leave on `route`.
    pub fn note_next_hop(&self, route: Route) {
        let mut known = self.links.next_hops.lock();
        if known.len() >= CAPACITY {
            known.retain(|_, at| at.elapsed() < FRESH);
        }
        if known.len() < CAPACITY {
            known.insert((route.local, route.remote), Instant::now());
        }
    }
}

fn no_route(route: Route, error: &io::Error) -> Error {
    let (from, to) = (route.local.to_ip(), route.remote.to_ip());
    let errno = error.raw_os_error().unwrap_or(libc::ENETUNREACH);
    Error::new(errno, format!("no route leads from {from} to {to}; see `ip route get {to} from {from}`"))
}

/// The ETIMEDOUT error of a neighbour that has not told its link address.
pub fn no_answer(route: Route, hop: &NextHop) -> Error {
    let (peer, neighbour) = (route.remote.to_ip(), hop.neighbour());
    let protocol = if neighbour.is_ipv4() { "ARP" } else { "neighbour discovery" };
    let whose = if neighbour == peer { String::new() } else { format!(", the next hop to {peer},") };
    let advice = "see that the host is up and on the same network";
    Error::new(libc::ETIMEDOUT, format!("{neighbour}{whose} does not answer {protocol}; {advice}"))
}
