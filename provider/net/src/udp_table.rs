//! What `/proc/net/udp` and `/proc/net/udp6` say of the RoCE port: how many sockets have it at an
//! address, and whose they are. Touches these files.

use crate::runtime_dir;
use roxe_base::privilege::effective_uid;
use roxe_wire::{Gid, ROCE_PORT};
use std::fs;
use std::io;
use std::net::IpAddr;

/// How many sockets are bound to the RoCE port of `gid`. A reader of the table misses lines when
/// others open and close sockets meanwhile, so it is read more than once; a number too many does no
/// harm.
pub(super) fn count_bound(gid: Gid) -> io::Result<usize> {
    let mut count = 0;
    for _ in 0..3 {
        count = count.max(users(&read(gid)?, &[local(gid)]).count());
    }
    Ok(count)
}

/// The other user who has the RoCE port of `gid`, in words; `None`: it is free, or of this user.
pub fn other_owner_of_port(gid: Gid) -> Option<String> {
    owner_of_port(gid).filter(|_| RocePorts::read().is_of_other_user(gid))
}

/// The owner of the RoCE port of `gid`, in words; `None`: the system shows none.
pub fn owner_of_port(gid: Gid) -> Option<String> {
    let uid = user_of_port(gid)?;
    // In a user namespace the system shows users that it does not map as one.
    let is_unmapped = runtime_dir::is_unmapped(uid);
    Some(if is_unmapped { "another user".to_owned() } else { format!("user {uid}") })
}

/// The user of a socket that is bound to the RoCE port of `gid`, or of all addresses.
fn user_of_port(gid: Gid) -> Option<u32> {
    users(&read(gid).ok()?, &[local(gid), any(gid)]).next()
}

/// Returns true if the RoCE port of `gid` belongs to another user of this host.
pub(super) fn is_card_of_other_user(gid: Gid) -> bool {
    RocePorts::read().users(gid, false).any(|uid| uid != effective_uid())
}

/// The sockets of this network namespace, as both tables had them.
#[derive(Debug)]
pub(super) struct RocePorts {
    tables: String,
}

impl RocePorts {
    /// Reads the tables; where there are none, no port belongs to anybody.
    pub(super) fn read() -> Self {
        let tables = ["/proc/net/udp", "/proc/net/udp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
        Self { tables: tables.concat() }
    }

    /// The users of the sockets at the port of `gid`, and of those at all addresses if `with_any`.
    fn users(&self, gid: Gid, with_any: bool) -> impl Iterator<Item = u32> {
        let locals = if with_any { vec![local(gid), any(gid)] } else { vec![local(gid)] };
        users(&self.tables, &locals).collect::<Vec<_>>().into_iter()
    }

    /// Returns true if another user has the port of `gid`.
    pub(super) fn is_of_other_user(&self, gid: Gid) -> bool {
        self.users(gid, true).any(|uid| uid != effective_uid())
    }

    /// Returns true if this user has the port of `gid`.
    pub(super) fn is_of_this_user(&self, gid: Gid) -> bool {
        self.users(gid, false).any(|uid| uid == effective_uid())
    }

    /// Returns true if nobody has the port of `gid`.
    pub(super) fn is_free(&self, gid: Gid) -> bool {
        self.users(gid, true).next().is_none()
    }
}

/// How the table shows the RoCE port of all addresses of the family of `gid`.
fn any(gid: Gid) -> String {
    format!("{}:{ROCE_PORT:04X}", "0".repeat(if gid.is_ipv4() { 8 } else { 32 }))
}

fn read(gid: Gid) -> io::Result<String> {
    fs::read_to_string(if gid.is_ipv4() { "/proc/net/udp" } else { "/proc/net/udp6" })
}

/// The users of the sockets in `table` that are bound to one of `locals`: the second and the eighth
/// column.
fn users<'a>(table: &'a str, locals: &'a [String]) -> impl Iterator<Item = u32> + 'a {
    table.lines().filter_map(move |line| {
        let mut columns = line.split_whitespace().skip(1);
        let is_meant = columns.next().is_some_and(|local| locals.iter().any(|meant| meant == local));
        is_meant.then(|| columns.nth(5)?.parse().ok()).flatten()
    })
}

/// How the table shows the RoCE port of `gid`. The kernel prints addresses as 32-bit words in the
/// byte order of the machine.
fn local(gid: Gid) -> String {
    let word = |bytes: &[u8; 4]| format!("{:08X}", u32::from_ne_bytes(*bytes));
    let address = match gid.to_ip() {
        IpAddr::V4(ip) => word(&ip.octets()),
        IpAddr::V6(ip) => ip.octets().as_chunks::<4>().0.iter().map(word).collect(),
    };
    format!("{address}:{ROCE_PORT:04X}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn sockets_are_found_by_address_and_port_with_their_users() {
        for gid in [Gid::from(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST).into()] {
            let line = |local: &str, user| format!("  1: {local} 0:0000 07 0:0 00:0 0 {user} 0 7 2 0 0\n");
            let other = local(gid).replace(":12B7", ":12B8");
            let table = [line("sl", 1), line(&local(gid), 1000), line(&other, 2), line(&local(gid), 3)].concat();
            assert!(users(&table, &[local(gid)]).eq([1000, 3]));
            assert_eq!(users(&table, &["0:12B7".to_owned()]).next(), None);
        }
    }
}
