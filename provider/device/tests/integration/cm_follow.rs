//! Ids follow the interface of their device: listeners, lost addresses, lost devices.

use crate::common::ends::*;
use crate::common::namespace::{self, VETH_UP};
use roxe_provider::Error;
use roxe_provider::cm::{EventKind, PortSpace};
use std::process::Command;

/// Runs `ip` with these arguments.
fn ip(args: &str) {
    assert!(Command::new("ip").args(args.split_whitespace()).status().unwrap().success(), "ip {args}");
}

fn errno(result: Result<(), Error>) -> i32 {
    result.unwrap_err().errno()
}

/// Connects to `to`, repeatedly until a program listens there.
fn reach(to: &str, port: u16) -> End {
    loop {
        let active = End::resolved(PortSpace::Tcp, &address(to).with_port(port));
        active.id.connect(&conn_param(b"")).unwrap();
        let event = active.next();
        if event.kind == EventKind::ConnectResponse {
            return active;
        }
        assert_eq!((event.kind, event.status), (EventKind::Rejected, 8));
        active.id.destroy();
    }
}

/// Accepts all requests until the channel is dropped.
fn accept_all(listener: &End) {
    let channel = listener.channel.clone();
    std::thread::spawn(move || {
        while let Ok(event) = channel.next() {
            if event.kind == EventKind::ConnectRequest {
                event.id.accept(&conn_param(b"")).unwrap();
            }
        }
    });
}

#[test]
fn ids_follow_interface_changes() {
    let make = "ip link set lo up && ip link add x0 type veth peer name x1 && ip addr add 10.77.0.1/24 dev x0 && \
                ip link set x1 addrgenmode none && ip link set x1 up && ip link set x0 up";
    namespace::inside("ids_follow_interface_changes", &format!("{make} && {VETH_UP}"), "x0,x1", || {
        let listener = End::new(PortSpace::Tcp);
        listener.id.bind(&address("0.0.0.0:0")).unwrap();
        listener.id.listen(0).unwrap();
        let port = listener.id.local_addr().unwrap().port();
        accept_all(&listener);
        reach("10.77.0.1:0", port).id.destroy();

        // The second device had no address so far.
        let to_come = End::new(PortSpace::Tcp);
        assert_eq!(errno(to_come.id.bind(&address("10.78.0.1:0"))), libc::EADDRNOTAVAIL);
        ip("addr add 10.78.0.1/24 dev x1");
        to_come.id.bind(&address("10.78.0.1:0")).unwrap();
        assert_eq!(to_come.id.device().unwrap().netdev(), "x1");
        reach("10.78.0.1:0", port).id.destroy();

        let (lost, kept) = (End::new(PortSpace::Tcp), End::new(PortSpace::Tcp));
        ip("addr add 10.77.0.2/24 dev x0");
        lost.id.bind(&address("10.77.0.2:0")).unwrap();
        kept.id.bind(&address("10.77.0.1:0")).unwrap();
        ip("addr del 10.77.0.2/24 dev x0");
        assert_eq!(lost.expect(EventKind::AddrChange).status, 0);
        assert!(kept.has_no_event());

        ip("link del x0");
        for end in [lost, kept, to_come] {
            assert_eq!(end.expect(EventKind::DeviceRemoval).status, 0);
            assert_eq!(errno(end.id.listen(1)), libc::EINVAL);
            end.id.destroy();
            assert!(end.has_no_event());
        }
    });
}
