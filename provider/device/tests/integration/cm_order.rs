//! Data of a peer is delivered before the end of its connection: at `DISCONNECTED` the completions
//! are in the queues, although rings, sockets and mailboxes have no common order. Runs in network
//! namespaces.

use crate::common::ends::{conn_param, expect};
use crate::common::ids::{CmNode, loopback};
use crate::common::peer::{MARK, Peer, ROLE};
use crate::common::{Node, namespace, request};
use roxe_provider::cm::{Channel, Event, EventKind, Id};
use roxe_provider::{CompChannel, CqInit, Qp, RecvRequest, SendOp, Service, WcStatus, devices};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

const PORT: u16 = 7471;
/// Connections per test.
const ROUNDS: u64 = 1000;
/// Messages per connection.
const BURST: usize = 8;

/// Traffic on each connection before the client ends it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Story {
    /// The server sends a message on a reliable connection, which the client acknowledges.
    Acknowledges,
    /// The client sends a burst on an unreliable connection.
    Sends,
}

impl Story {
    fn named(name: &str) -> Self {
        if name == "acknowledges" { Self::Acknowledges } else { Self::Sends }
    }

    fn name(self) -> &'static str {
        if self == Self::Acknowledges { "acknowledges" } else { "sends" }
    }

    fn service(self) -> Service {
        if self == Self::Acknowledges { Service::Rc } else { Service::Uc }
    }
}

/// A program with a completion channel.
struct Program {
    cm_node: CmNode,
    events: Arc<CompChannel>,
}

impl Program {
    fn open() -> Self {
        let context = devices().unwrap()[0].open().unwrap();
        let events = context.create_comp_channel().unwrap();
        let init = CqInit { cqe: 4096, channel: Some(Arc::clone(&events)), ..CqInit::default() };
        let cq = context.create_cq(init).unwrap();
        let cm_node = CmNode { node: Node::open_in(context, cq), channel: Channel::create().unwrap() };
        Self { cm_node, events }
    }

    fn qp(&self, id: &Id, story: Story) -> Arc<Qp> {
        let qp = self.cm_node.node.qp(story.service());
        id.attach_qp(&qp).unwrap();
        for n in 0..BURST {
            qp.post_recv(&RecvRequest { wr_id: n as u64, sges: &[self.cm_node.node.sge(0, 64)] }).unwrap();
        }
        qp
    }

    /// Serves connections that the client ends. Returns the number of those where `DISCONNECTED`
    /// overtook data. Another thread polls all the time, so that packets arrive while the process
    /// is between the look at one source and the next.
    fn serve(&self, story: Story, listening: impl FnOnce()) -> u64 {
        let (listener, is_over) = (self.cm_node.listen(loopback(PORT), 64).unwrap(), AtomicBool::new(false));
        let other = self.cm_node.node.context.create_cq(CqInit { cqe: 1, ..CqInit::default() }).unwrap();
        listening();
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    other.poll(1, |_| ()).unwrap();
                }
            });
            let overtaken = (0..ROUNDS).filter(|_| !self.serve_one(story)).count() as u64;
            is_over.store(true, Relaxed);
            listener.destroy();
            overtaken
        })
    }

    /// Returns true if all data preceded the end.
    fn serve_one(&self, story: Story) -> bool {
        let Self { cm_node: CmNode { node, channel, .. }, events } = self;
        let id = self.next(EventKind::ConnectRequest).id;
        let qp = self.qp(&id, story);
        node.cq.req_notify(false);
        id.accept(&conn_param(b"")).unwrap();
        expect(channel, EventKind::Established);
        if story == Story::Acknowledges {
            qp.post_send(&[request(1, SendOp::Send, &[node.sge(64, 64)])]).unwrap();
        }
        // The program only waits for events of connections.
        expect(channel, EventKind::Disconnected);
        let was_woken = events.try_get_event().is_some();
        let (expected, mut done) = (if story == Story::Acknowledges { 1 } else { BURST }, 0);
        if was_woken {
            // Polling a queue that has entries does not receive.
            node.cq.poll(BURST, |cqe| done += usize::from(cqe.status == WcStatus::Success)).unwrap();
        }
        id.disconnect().unwrap();
        id.destroy();
        qp.destroy();
        while node.cq.poll(BURST, |_| ()).unwrap() > 0 {}
        while events.try_get_event().is_some() {}
        done == expected
    }

    fn next(&self, kind: EventKind) -> Event {
        loop {
            let event = self.cm_node.event();
            if event.kind != EventKind::TimewaitExit {
                assert_eq!(event.kind, kind, "{event:?}");
                return event;
            }
        }
    }

    /// Makes the connections that the server serves, and ends each right after its traffic.
    fn connect(&self, story: Story) {
        let node = &self.cm_node.node;
        for _ in 0..ROUNDS {
            let id = self.cm_node.resolved(loopback(PORT));
            let qp = self.qp(&id, story);
            id.connect(&conn_param(b"")).unwrap();
            self.cm_node.expect(EventKind::Established);
            let mut awaited = 1;
            if story == Story::Sends {
                awaited = BURST;
                for n in 0..BURST {
                    qp.post_send(&[request(n as u64, SendOp::Send, &[node.sge(64, 64)])]).unwrap();
                }
            }
            for cqe in node.wait(awaited) {
                assert_eq!(cqe.status, WcStatus::Success, "{cqe:?}");
            }
            id.disconnect().unwrap();
            self.cm_node.expect(EventKind::Disconnected);
            id.destroy();
            qp.destroy();
            while node.cq.poll(BURST, |_| ()).unwrap() > 0 {}
        }
    }
}

/// Peer process, started by a test.
#[test]
fn peer() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (does, story) = role.split_once(' ').unwrap();
    let (program, story) = (Program::open(), Story::named(story));
    let overtaken = match does {
        "serve" => program.serve(story, || println!("\n{MARK}listening")),
        "idle" => {
            let _qp = program.cm_node.node.qp(Service::Rc);
            println!("\n{MARK}there");
            std::io::stdin().lines().count() as u64
        }
        _ => {
            program.connect(story);
            0
        }
    };
    println!("\n{MARK}{overtaken}");
}

/// Runs a server, a client, and `others` on the same address, which also get packets.
#[track_caller]
fn processes(test: &str, story: Story, others: usize, knobs: &[(&str, &str)]) {
    namespace::inside(test, namespace::LOOPBACK_UP, "lo", || {
        let mut server = Peer::start(&format!("serve {}", story.name()), knobs);
        assert_eq!(server.read_line(), "listening");
        let idle = || {
            let mut peer = Peer::start("idle sends", knobs);
            assert_eq!(peer.read_line(), "there");
            peer
        };
        let _others: Vec<_> = (0..others).map(|_| idle()).collect();
        let mut client = Peer::start(&format!("connect {}", story.name()), knobs);
        assert_eq!(client.read_line(), "0");
        assert_eq!(server.read_line(), "0", "connections of {ROUNDS} whose end overtook what was sent before");
    });
}

#[track_caller]
fn one_process(test: &str, story: Story) {
    namespace::inside(test, namespace::LOOPBACK_UP, "lo", || {
        let (sender, receiver) = std::sync::mpsc::channel();
        let serving = thread::spawn(move || Program::open().serve(story, || sender.send(()).unwrap()));
        receiver.recv().unwrap();
        Program::open().connect(story);
        let overtaken = serving.join().unwrap();
        assert_eq!(overtaken, 0, "connections of {ROUNDS} whose end overtook what was sent before");
    });
}

// clause: CM-END-LAST
#[test]
fn ack_by_ring_precedes_disconnect() {
    let name = "ack_by_ring_precedes_disconnect";
    processes(name, Story::Acknowledges, 0, &[]);
}

#[test]
fn ack_by_udp_precedes_disconnect() {
    let name = "ack_by_udp_precedes_disconnect";
    processes(name, Story::Acknowledges, 0, &[("ROXE_LINK", "udp")]);
}

#[test]
fn ack_precedes_disconnect_with_many_processes() {
    let name = "ack_precedes_disconnect_with_many_processes";
    processes(name, Story::Acknowledges, 3, &[("ROXE_LINK", "udp")]);
}

#[test]
fn messages_by_ring_precede_disconnect() {
    let name = "messages_by_ring_precede_disconnect";
    processes(name, Story::Sends, 0, &[]);
}

#[test]
fn messages_by_udp_precede_disconnect() {
    let name = "messages_by_udp_precede_disconnect";
    processes(name, Story::Sends, 0, &[("ROXE_LINK", "udp")]);
}

#[test]
fn messages_precede_disconnect_with_many_processes() {
    let name = "messages_precede_disconnect_with_many_processes";
    processes(name, Story::Sends, 3, &[("ROXE_LINK", "udp")]);
}

#[test]
fn ack_within_process_precedes_disconnect() {
    let name = "ack_within_process_precedes_disconnect";
    one_process(name, Story::Acknowledges);
}

#[test]
fn messages_within_process_precede_disconnect() {
    one_process("messages_within_process_precede_disconnect", Story::Sends);
}
