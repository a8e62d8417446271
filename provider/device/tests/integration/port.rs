//! The port follows its interface: events, GID table and traffic while the interface changes.

use crate::common::namespace::{self, VETH_UP};
use crate::common::{Node, activate, datagram, post_recv};
use roxe_provider::wire::Gid;
use roxe_provider::{AsyncEventKind, Context, Service, WcStatus, devices};
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

/// Maximum time for an event, milliseconds.
const TIMEOUT: i32 = 20_000;

/// Runs `ip` with these arguments.
fn ip(args: &str) {
    assert!(Command::new("ip").args(args.split_whitespace()).status().unwrap().success(), "ip {args}");
}

/// Waits for an event of this kind and skips others.
fn expect(context: &Context, kind: AsyncEventKind) {
    loop {
        let mut poll = libc::pollfd { fd: context.async_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure that outlives the call.
        assert_eq!(unsafe { libc::poll(&raw mut poll, 1, TIMEOUT) }, 1, "{kind:?} does not come");
        let event = context.next_async_event().unwrap();
        assert_eq!(event.user_context, 1, "the number of the port");
        if event.kind == kind {
            return;
        }
    }
}

fn index_of(context: &Context, address: Ipv4Addr) -> Option<u8> {
    let gid = Gid::from(IpAddr::V4(address));
    context.gid_entries().iter().find(|entry| entry.gid == gid).map(|entry| entry.index)
}

#[test]
fn port_follows_its_interface() {
    let make = "ip link set lo up && ip link add x0 type veth peer name x1 && ip addr add 10.77.0.1/24 dev x0 && \
                ip link add y0 type veth peer name y1 && ip link set x1 up && ip link set x0 up";
    namespace::inside("port_follows_its_interface", &format!("{make} && {VETH_UP}"), "x0,y0", || {
        let [first, second, third] = [1, 2, 3].map(|last| Ipv4Addr::new(10, 77, 0, last));
        let context = devices().unwrap()[0].open().unwrap();
        let port = || context.port_attr(1).unwrap();
        // 1X QDR: a veth says 10 Gbit/s.
        let speed = || (port().active_width, port().active_speed);
        assert_eq!((port().state, speed(), index_of(&context, first)), (4, (1, 4), Some(0)));
        ip("link set x0 down");
        expect(&context, AsyncEventKind::PortErr);
        assert_eq!((port().state, speed()), (1, (1, 4)));
        assert_eq!(devices().unwrap()[1].port_attr().active_speed, 4, "of a device that is opened while it is down");
        ip("link set x0 up");
        expect(&context, AsyncEventKind::PortActive);
        assert_eq!(context.port_attr(1).unwrap().state, 4);

        let node = Node::open();
        let qp = node.qp(Service::Ud);
        activate(&qp);
        ip("addr add 10.77.0.2/24 dev x0");
        while index_of(&context, second).is_none() {
            expect(&context, AsyncEventKind::GidChange);
        }
        // To and from the new address, whose sockets only the background thread has opened.
        let index = index_of(&context, second).unwrap();
        post_recv(&qp, 1, node.sge(4096, 4096));
        qp.post_send(&[datagram(2, node.av(index, second.into()), qp.qpn(), &[node.sge(0, 64)])]).unwrap();
        assert!(node.wait(2).iter().all(|cqe| cqe.status == WcStatus::Success));

        ip("addr add 10.77.0.3/24 dev x0");
        while index_of(&context, third).is_none() {
            expect(&context, AsyncEventKind::GidChange);
        }
        let behind = index_of(&context, third);
        ip("addr del 10.77.0.2/24 dev x0");
        while index_of(&context, second).is_some() {
            expect(&context, AsyncEventKind::GidChange);
        }
        assert!(context.gid(1, index.into()).unwrap().is_zero(), "a hole in the table");
        assert_eq!(index_of(&context, third), behind, "other addresses stay where they are");
        ip("link del x0");
        expect(&context, AsyncEventKind::DeviceFatal);
        expect(&node.context, AsyncEventKind::DeviceFatal);
        assert_eq!((context.port_attr(1).unwrap().state, context.gid_entries().len()), (1, 0));
    });
}
