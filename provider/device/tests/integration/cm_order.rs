//! What a peer sent before it ended a connection is told before the end of it: when a program hears
//! `DISCONNECTED`, the completions are in its queues. Rings, sockets and mailboxes are separate
//! ways into a process, and management messages take another way than data. Each test runs in a
//! network of its own.

use crate::common::ends::{expect, saying};
use crate::common::ids::{Party, here};
use crate::common::peer::{MARK, Peer, ROLE};
use crate::common::{Node, namespace, request};
use roxe_provider::cm::{Channel, Event, EventKind, Id};
use roxe_provider::{CompChannel, CqInit, Qp, RecvRequest, SendOp, Service, WcStatus, devices};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

const PORT: u16 = 7471;
/// Connections of each test.
const ROUNDS: u64 = 1000;
/// Messages of one connection.
const BURST: usize = 8;

/// What happens on each connection before the client ends it.
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
    party: Party,
    events: Arc<CompChannel>,
}

impl Program {
    fn open() -> Self {
        let context = devices().unwrap()[0].open().unwrap();
        let events = context.create_comp_channel().unwrap();
        let init = CqInit { cqe: 4096, channel: Some(Arc::clone(&events)), ..CqInit::default() };
        let cq = context.create_cq(init).unwrap();
        let party = Party { node: Node::open_in(context, cq), channel: Channel::create().unwrap() };
        Self { party, events }
    }

    fn qp(&self, id: &Id, story: Story) -> Arc<Qp> {
        let qp = self.party.node.qp(story.service());
        id.attach_qp(&qp).unwrap();
        for n in 0..BURST {
            qp.post_recv(&RecvRequest { wr_id: n as u64, sges: &[self.party.node.sge(0, 64)] }).unwrap();
        }
        qp
    }

    /// Serves connections that the client ends. In how many `DISCONNECTED` came before what the
    /// client had done. Meanwhile another thread polls a completion queue of its own, so the
    /// process looks for packets all the time: what comes in while it looks finds one way already
    /// looked at, and the next not yet.
    fn serve(&self, story: Story, listening: impl FnOnce()) -> u64 {
        let (listener, is_over) = (self.party.listen(here(PORT), 64).unwrap(), AtomicBool::new(false));
        let other = self.party.node.context.create_cq(CqInit { cqe: 1, ..CqInit::default() }).unwrap();
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

    /// Whether everything was there in time.
    fn serve_one(&self, story: Story) -> bool {
        let Self { party: Party { node, channel, .. }, events } = self;
        let id = self.next(EventKind::ConnectRequest).id;
        let qp = self.qp(&id, story);
        node.cq.req_notify(false);
        id.accept(&saying(b"")).unwrap();
        expect(channel, EventKind::Established);
        if story == Story::Acknowledges {
            qp.post_send(&[request(1, SendOp::Send, &[node.sge(64, 64)])]).unwrap();
        }
        // The program looks for nothing but events of connections meanwhile.
        expect(channel, EventKind::Disconnected);
        let was_woken = events.try_get_event().is_some();
        let (expected, mut done) = (if story == Story::Acknowledges { 1 } else { BURST }, 0);
        if was_woken {
            // A queue that holds something gives that and does not receive.
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
            let event = self.party.event();
            if event.kind != EventKind::TimewaitExit {
                assert_eq!(event.kind, kind, "{event:?}");
                return event;
            }
        }
    }

    /// Makes as many connections as the server serves, and ends each as soon as it has done what is
    /// to be told first.
    fn connect(&self, story: Story) {
        let node = &self.party.node;
        for _ in 0..ROUNDS {
            let id = self.party.resolved(here(PORT));
            let qp = self.qp(&id, story);
            id.connect(&saying(b"")).unwrap();
            self.party.expect(EventKind::Established);
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
            self.party.expect(EventKind::Disconnected);
            id.destroy();
            qp.destroy();
            while node.cq.poll(BURST, |_| ()).unwrap() > 0 {}
        }
    }
}

/// Not a test of its own: does something only where a test has started it.
#[test]
fn peer() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (does, story) = role.split_once(' ').unwrap();
    let (program, story) = (Program::open(), Story::named(story));
    let overtaken = match does {
        "serve" => program.serve(story, || println!("\n{MARK}listening")),
        "idle" => {
            let _qp = program.party.node.qp(Service::Rc);
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

/// A server and a client, and `others` that share their address and do nothing: the system gives
/// them packets too.
fn processes(test: &str, story: Story, others: usize, knobs: &[(&str, &str)]) {
    if !namespace::is_inside() {
        return namespace::run(test, "ip link set lo up", "lo");
    }
    let mut server = Peer::start(&format!("serve {}", story.name()), knobs);
    assert_eq!(server.hear(), "listening");
    let idle = || {
        let mut peer = Peer::start("idle sends", knobs);
        assert_eq!(peer.hear(), "there");
        peer
    };
    let _others: Vec<_> = (0..others).map(|_| idle()).collect();
    let mut client = Peer::start(&format!("connect {}", story.name()), knobs);
    assert_eq!(client.hear(), "0");
    assert_eq!(server.hear(), "0", "connections of {ROUNDS} whose end overtook what was sent before");
    namespace::done();
}

fn one_process(test: &str, story: Story) {
    if !namespace::is_inside() {
        return namespace::run(test, "ip link set lo up", "lo");
    }
    let (tell, told) = std::sync::mpsc::channel();
    let serving = thread::spawn(move || Program::open().serve(story, || tell.send(()).unwrap()));
    told.recv().unwrap();
    Program::open().connect(story);
    let overtaken = serving.join().unwrap();
    assert_eq!(overtaken, 0, "connections of {ROUNDS} whose end overtook what was sent before");
    namespace::done();
}

// clause: CM-END-LAST
#[test]
fn an_acknowledgement_by_a_ring_is_told_before_the_end_of_the_connection() {
    let name = "an_acknowledgement_by_a_ring_is_told_before_the_end_of_the_connection";
    processes(name, Story::Acknowledges, 0, &[]);
}

#[test]
fn an_acknowledgement_by_the_wire_is_told_before_the_end_of_the_connection() {
    let name = "an_acknowledgement_by_the_wire_is_told_before_the_end_of_the_connection";
    processes(name, Story::Acknowledges, 0, &[("ROXE_LINK", "udp")]);
}

#[test]
fn an_acknowledgement_is_told_before_the_end_of_the_connection_where_many_share_the_address() {
    let name = "an_acknowledgement_is_told_before_the_end_of_the_connection_where_many_share_the_address";
    processes(name, Story::Acknowledges, 3, &[("ROXE_LINK", "udp")]);
}

#[test]
fn messages_by_a_ring_are_told_before_the_end_of_the_connection() {
    let name = "messages_by_a_ring_are_told_before_the_end_of_the_connection";
    processes(name, Story::Sends, 0, &[]);
}

#[test]
fn messages_by_the_wire_are_told_before_the_end_of_the_connection() {
    let name = "messages_by_the_wire_are_told_before_the_end_of_the_connection";
    processes(name, Story::Sends, 0, &[("ROXE_LINK", "udp")]);
}

#[test]
fn messages_are_told_before_the_end_of_the_connection_where_many_share_the_address() {
    let name = "messages_are_told_before_the_end_of_the_connection_where_many_share_the_address";
    processes(name, Story::Sends, 3, &[("ROXE_LINK", "udp")]);
}

#[test]
fn an_acknowledgement_within_a_process_is_told_before_the_end_of_the_connection() {
    let name = "an_acknowledgement_within_a_process_is_told_before_the_end_of_the_connection";
    one_process(name, Story::Acknowledges);
}

#[test]
fn messages_within_a_process_are_told_before_the_end_of_the_connection() {
    one_process("messages_within_a_process_are_told_before_the_end_of_the_connection", Story::Sends);
}
