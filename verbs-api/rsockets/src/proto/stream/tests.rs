//! Two streams with their memory: bytes arrive in order for all sizes, paces and byte orders. Also
//! protocol violations and ends of a stream.

use super::*;
use crate::proto::conn::ByteOrder;
use std::collections::VecDeque;

const SIZES: Sizes = Sizes { send_queue: 16, recv_queue: 16, send_buffer: 8192, recv_buffer: 8192, iomaps: 2 };
const BUFFER: u64 = 0x10_0000;
const LIST: u64 = 0x20_0000;

fn conn_data(sizes: &Sizes) -> ConnData {
    ConnData {
        order: ByteOrder::NATIVE,
        credits: sizes.recv_queue,
        iomaps: Some(sizes.iomaps),
        targets: Target { addr: LIST, rkey: 2, len: 2 },
        data: Target { addr: BUFFER, rkey: 1, len: sizes.recv_buffer / 2 },
    }
}

fn stream(sizes: &Sizes) -> Stream {
    Stream::new(sizes, Target { addr: BUFFER, rkey: 1, len: sizes.recv_buffer }, conn_data(sizes))
}

/// A WRITE: bytes for a place, immediate data, and the kind of its completion.
struct Packet {
    to: Target,
    bytes: Vec<u8>,
    imm: Option<u32>,
    done: Done,
}

/// One side: its machine and its memory.
struct Side {
    stream: Stream,
    buffer: Vec<u8>,
    list: Vec<u8>,
    wire: VecDeque<Packet>,
    next_out: u8,
    next_in: u8,
    received: usize,
}

impl Side {
    fn new(sizes: &Sizes) -> Self {
        Self {
            stream: stream(sizes),
            buffer: vec![0; sizes.recv_buffer as usize],
            list: vec![0; 2 * TARGET_LEN + usize::from(sizes.iomaps) * IOMAP_LEN],
            wire: VecDeque::new(),
            next_out: 0,
            next_in: 0,
            received: 0,
        }
    }

    fn notices(&mut self) {
        while let Some(notice) = self.stream.poll_notice() {
            let done = notice.done();
            let (to, bytes, imm) = match notice {
                Notice::Message(message) => (Target::default(), vec![], Some(message.encode())),
                Notice::Entry { to, bytes, message } => (to, bytes.to_vec(), Some(message.encode())),
                Notice::Probe => (Target::default(), vec![], None),
            };
            self.wire.push_back(Packet { to, bytes, imm, done });
        }
    }

    /// Sends up to `len` bytes; returns how many.
    fn send(&mut self, len: u32) -> u32 {
        self.look_for_target();
        let len = len.min(self.stream.outgoing.room());
        if len == 0 {
            return 0;
        }
        let write = self.stream.outgoing.data(len, true);
        let bytes = (0..len).map(|_| next(&mut self.next_out)).collect();
        let (imm, done) = (Some(Message::Data(len).encode()), Done::Data(write.held()));
        self.wire.push_back(Packet { to: write.to, bytes, imm, done });
        len
    }

    fn look_for_target(&mut self) {
        if let Some(entry) = self.stream.outgoing.wants_target() {
            let place = &mut self.list[entry * TARGET_LEN..][..TARGET_LEN];
            self.stream.outgoing.set_target(Target::decode((*place).try_into().unwrap(), ByteOrder::NATIVE));
            place.fill(0);
        }
    }

    /// Reads up to `max` bytes and checks each.
    fn recv(&mut self, max: usize) {
        let place = self.stream.incoming.peek(0, max);
        for at in place.clone() {
            assert_eq!(self.buffer[at as usize], next(&mut self.next_in));
        }
        self.stream.incoming.consume(place.end - place.start);
        self.received += place.len();
    }
}

/// Bytes that reveal shifts: the period is not a power of two.
fn next(byte: &mut u8) -> u8 {
    *byte = (*byte + 1) % 251;
    *byte
}

/// Delivers the oldest packet of `from` to `to` and completes it.
fn land(from: &mut Side, to: &mut Side) {
    let Some(packet) = from.wire.pop_front() else { return };
    if packet.to.rkey == 1 {
        let at = (packet.to.addr - BUFFER) as usize;
        to.buffer[at..at + packet.bytes.len()].copy_from_slice(&packet.bytes);
    } else if packet.to.rkey == 2 {
        let at = (packet.to.addr - LIST) as usize;
        to.list[at..at + packet.bytes.len()].copy_from_slice(&packet.bytes);
    }
    if let Some(imm) = packet.imm {
        assert_eq!(to.stream.handle_message(imm), Ok(None));
    }
    from.stream.handle_done(packet.done);
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 % n
    }
}

// clause: RSOCK-CREDITS, RSOCK-GRANT, RSOCK-TARGET-ORDER, RSOCK-CONTROL-SLOTS
#[test]
fn bytes_arrive_in_order_at_any_pace() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let sizes = Sizes {
            send_queue: 5 + random.below(30) as u16,
            recv_queue: 2 + random.below(30) as u16,
            send_buffer: 1 + random.below(9000),
            recv_buffer: 2 * (1 + random.below(5000)),
            iomaps: 0,
        };
        let (mut a, mut b) = (Side::new(&sizes), Side::new(&sizes));
        let total = 40_000;
        let mut sent = 0;
        let mut steps = 0;
        while b.received < total as usize {
            steps += 1;
            assert!(steps < 2_000_000, "seed {seed}: stuck at {} of {total} with {sizes:?}", b.received);
            match random.below(4) {
                0 => sent += a.send((1 + random.below(6000)).min(total - sent)),
                1 => b.recv(random.below(7000) as usize),
                2 => land(&mut a, &mut b),
                _ => land(&mut b, &mut a),
            }
            a.notices();
            b.notices();
        }
    }
}

// clause: RSOCK-DISCONNECT
#[test]
fn end_of_stream_follows_the_data() {
    let (mut a, mut b) = (Side::new(&SIZES), Side::new(&SIZES));
    assert_eq!(a.send(100), 100);
    a.stream.shut_down(true, true);
    a.notices();
    assert!(a.stream.shut_by_us() && !a.stream.is_settled());
    while !a.wire.is_empty() {
        land(&mut a, &mut b);
    }
    assert_eq!((a.stream.link(), b.stream.link()), (Link::Down, Link::Down));
    assert!(a.stream.is_settled() && b.stream.at_end() && b.stream.is_shut() && !b.stream.shut_by_us());
    b.recv(1000);
    assert_eq!(b.received, 100);
}

// clause: RSOCK-SHUTDOWN
#[test]
fn directions_end_independently() {
    let (mut a, mut b) = (Side::new(&SIZES), Side::new(&SIZES));
    a.stream.shut_down(false, true);
    a.stream.shut_down(false, true);
    a.notices();
    let sent: Vec<_> = a.wire.iter().filter_map(|packet| packet.imm).collect();
    assert_eq!(sent.last(), Some(&Message::Control(Control::Shutdown).encode()));
    assert_eq!(sent.len(), 2, "a grant, and the end once");
    while !a.wire.is_empty() {
        land(&mut a, &mut b);
    }
    assert!(b.stream.at_end() && b.stream.can_send() && b.stream.link() == Link::Up);
    assert!(a.stream.is_shut() && !a.stream.at_end());
    assert_eq!(b.send(50), 50);
    b.stream.shut_down(false, true);
    b.notices();
    assert_eq!(b.wire.back().unwrap().imm, Some(Message::Control(Control::Disconnect).encode()));
    while !b.wire.is_empty() {
        land(&mut b, &mut a);
    }
    assert_eq!((a.stream.link(), b.stream.link()), (Link::Down, Link::Down));
    a.recv(100);
    assert_eq!(a.received, 50);
}

#[test]
fn shutdown_of_reading_sends_nothing() {
    let mut a = Side::new(&SIZES);
    a.notices();
    a.wire.clear();
    a.stream.shut_down(true, false);
    a.notices();
    assert!(a.wire.is_empty() && a.stream.at_end() && !a.stream.is_shut());
}

// clause: RSOCK-OVERRUN
#[test]
fn protocol_violation_breaks_the_connection() {
    for imm in [SIZES.recv_buffer + 1, 1 << 29, 3 << 29] {
        let mut liar = stream(&SIZES);
        assert_eq!(liar.handle_message(imm), Err(Violation));
        assert_eq!(liar.link(), Link::Broken);
        assert_eq!(liar.handle_message(5), Ok(None), "later messages are ignored");
        assert_eq!(liar.poll_notice(), None);
    }
}

// clause: RSOCK-KEEPALIVE
#[test]
fn probe_is_an_empty_write() {
    let mut a = stream(&SIZES);
    while a.poll_notice().is_some() {}
    a.keep_alive();
    assert_eq!(a.poll_notice(), Some(Notice::Probe));
    assert_eq!(a.poll_notice(), None);
    assert_eq!(a.handle_message(Message::Control(Control::Keepalive).encode()), Ok(None));
    assert_eq!(a.link(), Link::Up);
}

// clause: RSOCK-CONTROL-SLOTS
#[test]
fn notices_stay_within_control_slots() {
    let mut a = stream(&SIZES);
    assert!(a.poll_notice().is_some());
    for _ in 1..CONTROL_SLOTS {
        a.keep_alive();
        assert!(a.poll_notice().is_some());
    }
    a.keep_alive();
    assert_eq!(a.poll_notice(), None);
    assert!(!a.is_settled());
    a.handle_done(Done::Notice);
    assert_eq!(a.poll_notice(), Some(Notice::Probe));
}

// clause: RSOCK-IOMAP
#[test]
fn mapping_follows_targets_and_is_found_by_offset() {
    let (mut a, mut b) = (stream(&SIZES), stream(&SIZES));
    let iomap = Iomap { offset: 1000, place: Target { addr: 0x5000, rkey: 9, len: 100 } };
    let (to, bytes, message) = a.map(1, &iomap);
    assert_eq!(to, Target { addr: LIST + 2 * 16 + 24, rkey: 2, len: 24 });
    assert_eq!(b.handle_message(message.encode()), Ok(Some(1)));
    b.set_iomap(1, Iomap::decode_native(bytes));
    b.set_iomap(7, iomap);
    assert_eq!(b.mapped(1099), Some(Target { addr: 0x5063, rkey: 9, len: 1 }));
    assert_eq!(b.mapped(1100), None);
    assert_eq!(b.mapped(999), None);
    assert_eq!(a.mappable(), 2);
    let write = b.outgoing.write(Target { addr: 0x5063, rkey: 9, len: 1 }, true);
    assert_eq!(write.to.len, 1);
}

// clause: RSOCK-TARGET
#[test]
fn entries_use_the_byte_order_of_their_host() {
    let other = match ByteOrder::NATIVE {
        ByteOrder::Big => ByteOrder::Little,
        ByteOrder::Little => ByteOrder::Big,
    };
    let peer = ConnData { order: other, ..conn_data(&SIZES) };
    let mut a = Stream::new(&SIZES, Target { addr: BUFFER, rkey: 1, len: 8192 }, peer);
    let Some(Notice::Entry { bytes, .. }) = a.poll_notice() else { panic!("no grant") };
    assert_eq!(bytes, Target { addr: BUFFER + 4096, rkey: 1, len: 4096 }.encode(other));
}
