//! Which addresses of an interface the card of this user has: those whose RoCE port no other user
//! has.
//!
//! The kernel gives the RoCE port of an address to one user. On the loopback interface every address
//! of 127.0.0.0/8 is as good as any other, so a further user gets the next free one there. The
//! processes of a user agree on it by a file in the common folder, which counts as long as one of
//! them has the port of that address. Touches the file and the kernel's table of UDP sockets.

use crate::named;
use crate::runtime_dir::common_dir;
use crate::udp_table::RocePorts;
use roxe_wire::Gid;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// The addresses that the card of this user has on an interface with these `addresses`. All of them
/// if other users have all, so that whoever opens one is told.
pub fn usable(addresses: &[Gid]) -> Vec<Gid> {
    let ports = RocePorts::read();
    let own: Vec<_> = addresses.iter().copied().filter(|gid| !ports.is_of_other_user(*gid)).collect();
    let is_loopback = |gid: &Gid| gid.is_ipv4() && gid.to_ip().is_loopback();
    let found = match addresses.iter().find(|gid| is_loopback(gid)) {
        Some(first) => stand_in(*first, !own.contains(first), &ports).map(|gid| (first, gid)),
        None => None,
    };
    match found {
        Some((first, gid)) => [gid].into_iter().chain(own.into_iter().filter(|own| own != first)).collect(),
        None if own.is_empty() => addresses.to_vec(),
        None => own,
    }
}

/// The address that this user's card has instead of `first`, which another user has if `is_taken`.
fn stand_in(first: Gid, is_taken: bool, ports: &RocePorts) -> Option<Gid> {
    let path = agreement().ok();
    let agreed = path.as_ref().and_then(|path| fs::read_to_string(path).ok()?.trim().parse::<Ipv4Addr>().ok());
    let agreed = agreed.filter(Ipv4Addr::is_loopback).map(Gid::from);
    if let Some(agreed) = agreed.filter(|agreed| ports.is_of_this_user(*agreed)) {
        return Some(agreed);
    }
    if !is_taken {
        return None;
    }
    let free = (2..=254).map(|last| Gid::from(Ipv4Addr::new(127, 0, 0, last)));
    let chosen = agreed.into_iter().chain(free).find(|gid| *gid != first && ports.is_free(*gid))?;
    if let Some(path) = path {
        // Without the file, each process chooses the same address as long as nothing changes.
        let _ = write(&path, chosen);
    }
    Some(chosen)
}

/// The file that names the address.
fn agreement() -> io::Result<PathBuf> {
    Ok(common_dir()?.join(format!("loopback-{:x}", named::namespace()?)))
}

fn write(path: &PathBuf, chosen: Gid) -> io::Result<()> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    write!(options.open(path)?, "{}", chosen.to_ip())
}
