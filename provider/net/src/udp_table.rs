//! What `/proc/net/udp` and `/proc/net/udp6` say of the RoCE port: how many sockets have it at an
//! address, and whose they are. Touches these files.

use crate::runtime_dir;
use roxe_base::privilege::effective_uid;
use roxe_wire::{Gid, ROCE_PORT};
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How many sockets are bound to the RoCE port of `gid`. A reader of the table misses lines when
/// others open and close sockets meanwhile, so it is read more than once; a number too many does no
/// harm.
pub(super) fn count_bound(gid: Gid) -> io::Result<usize> {
    let mut count = 0;
    for _ in 0..3 {
        count = count.max(users(&read(gid)?, &[local(gid, ROCE_PORT)]).count());
    }
    Ok(count)
}

/// The other user who has the RoCE port of `gid`, in words; `None`: it is free, or of this user.
pub fn other_owner_of_port(gid: Gid) -> Option<String> {
    Users::of_port(ROCE_PORT).at(&[gid, any(gid)]).find(|uid| *uid != effective_uid()).map(in_words)
}

/// The owner of the RoCE port of `gid`, in words; `None`: the system shows none.
pub fn owner_of_port(gid: Gid) -> Option<String> {
    Users::of_port(ROCE_PORT).at(&[gid, any(gid)]).next().map(in_words)
}

/// In a user namespace the system shows all users that it does not map as one.
fn in_words(uid: u32) -> String {
    if runtime_dir::is_unmapped(uid) { "another user".to_owned() } else { format!("user {uid}") }
}

/// Returns true if the RoCE port of `gid` belongs to another user of this host.
pub(super) fn is_card_of_other_user(gid: Gid) -> bool {
    Users::of_port(ROCE_PORT).at(&[gid]).any(|uid| uid != effective_uid())
}

/// Which users have a port, as both tables had it; nobody where there are no tables.
#[derive(Debug)]
pub(super) struct Users {
    tables: String,
    port: u16,
}

impl Users {
    /// Reads the tables.
    pub(super) fn of_port(port: u16) -> Self {
        let tables = ["/proc/net/udp", "/proc/net/udp6"].map(|path| fs::read_to_string(path).unwrap_or_default());
        Self { tables: tables.concat(), port }
    }

    /// The users of the sockets at these addresses.
    fn at(&self, gids: &[Gid]) -> impl Iterator<Item = u32> {
        let locals: Vec<_> = gids.iter().map(|gid| local(*gid, self.port)).collect();
        users(&self.tables, &locals).collect::<Vec<_>>().into_iter()
    }

    /// Returns true if another user has the port of `gid`, or of all addresses.
    pub(super) fn is_other_user_at(&self, gid: Gid) -> bool {
        self.at(&[gid, any(gid)]).any(|uid| uid != effective_uid())
    }

    /// Returns true if this user has the port of `gid`.
    pub(super) fn is_this_user_at(&self, gid: Gid) -> bool {
        self.at(&[gid]).any(|uid| uid == effective_uid())
    }
}

/// What stands for all addresses of the family of `gid`.
fn any(gid: Gid) -> Gid {
    let any: IpAddr = if gid.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    any.into()
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

/// How the table shows `port` of `gid`. The kernel prints addresses as 32-bit words in the
/// byte order of the machine.
fn local(gid: Gid, port: u16) -> String {
    let word = |bytes: &[u8; 4]| format!("{:08X}", u32::from_ne_bytes(*bytes));
    let address = match gid.to_ip() {
        IpAddr::V4(ip) => word(&ip.octets()),
        IpAddr::V6(ip) => ip.octets().as_chunks::<4>().0.iter().map(word).collect(),
    };
    format!("{address}:{port:04X}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_found_by_address_and_port_with_their_users() {
        for gid in [Gid::from(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST).into()] {
            let line = |local: &str, user| format!("  1: {local} 0:0000 07 0:0 00:0 0 {user} 0 7 2 0 0\n");
            let other = local(gid, ROCE_PORT).replace(":12B7", ":12B8");
            let table =
                [line("sl", 1), line(&local(gid, ROCE_PORT), 1000), line(&other, 2), line(&local(gid, ROCE_PORT), 3)]
                    .concat();
            assert!(users(&table, &[local(gid, ROCE_PORT)]).eq([1000, 3]));
            assert_eq!(users(&table, &["0:12B7".to_owned()]).next(), None);
        }
    }
}
