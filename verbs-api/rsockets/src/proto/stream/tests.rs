//! Two streams that exchange packets through simulated memory: order of the bytes for all sizes and
//! paces, protocol violations, and ends of a stream.

use super::*;
use crate::proto::conn::ByteOrder;
use std::collections::VecDeque;

const SIZES: Sizes = Sizes { send_queue: 16, recv_queue: 16, send_buffer: 8192, recv_buffer: 8192, iomaps: 2 };
/// Addresses of the receive buffer and of the target list.
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

/// A posted WRITE.
struct Packet {
    to: Target,
    bytes: Vec<u8>,
    imm: Option<u32>,
    kind: CompletionKind,
}

/// One side of a connection, with its memory.
struct Side {
    stream: Stream,
    buffer: Vec<u8>,
    /// The target list and the table of mappings.
    list: Vec<u8>,
    /// Posted packets that the peer has not received.
    wire: VecDeque<Packet>,
    /// Last byte sent.
    last_out: u8,
    /// Last byte received.
    last_in: u8,
    /// Number of bytes received.
    received: usize,
}

impl Side {
    fn new(sizes: &Sizes) -> Self {
        Self {
            stream: stream(sizes),
            buffer: vec![0; sizes.recv_buffer as usize],
            list: vec![0; 2 * TARGET_LEN + usize::from(sizes.iomaps) * IOMAP_LEN],
            wire: VecDeque::new(),
            last_out: 0,
            last_in: 0,
            received: 0,
        }
    }

    fn post_notices(&mut self) {
        while let Some(notice) = self.stream.poll_notice() {
            let kind = notice.completion_kind();
            let (to, bytes, imm) = match notice {
                Notice::Message(message) => (Target::default(), vec![], Some(message.encode())),
                Notice::Entry { to, bytes, message } => (to, bytes.to_vec(), Some(message.encode())),
                Notice::Probe => (Target::default(), vec![], None),
            };
            self.wire.push_back(Packet { to, bytes, imm, kind });
        }
    }

    /// Sends up to `len` bytes; returns how many.
    fn send(&mut self, len: u32) -> u32 {
        self.read_next_target();
        let len = len.min(self.stream.outgoing.sendable_len());
        if len == 0 {
            return 0;
        }
        let write = self.stream.outgoing.start_data(len, true);
        let bytes = (0..len).map(|_| advance(&mut self.last_out)).collect();
        let (imm, kind) = (Some(Message::Data(len).encode()), CompletionKind::Data(write.buffer_bytes()));
        self.wire.push_back(Packet { to: write.to, bytes, imm, kind });
        len
    }

    fn read_next_target(&mut self) {
        if let Some(index) = self.stream.outgoing.poll_target_index() {
            let entry = &mut self.list[index * TARGET_LEN..][..TARGET_LEN];
            self.stream.outgoing.set_target(Target::decode((*entry).try_into().unwrap(), ByteOrder::NATIVE));
            entry.fill(0);
        }
    }

    /// Reads up to `max` bytes and checks each.
    fn recv(&mut self, max: usize) {
        let unread = self.stream.incoming.peek(0, max);
        for at in unread.clone() {
            assert_eq!(self.buffer[at as usize], advance(&mut self.last_in));
        }
        self.stream.incoming.consume(unread.end - unread.start);
        self.received += unread.len();
    }
}

/// Advances a counter to the next byte of the test data. The period is not a power of two, so that
/// shifted data differs.
fn advance(byte: &mut u8) -> u8 {
    *byte = (*byte + 1) % 251;
    *byte
}

/// Delivers the oldest packet of `from` to `to` and completes it.
fn deliver(from: &mut Side, to: &mut Side) {
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
    from.stream.handle_completion(packet.kind);
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
                2 => deliver(&mut a, &mut b),
                _ => deliver(&mut b, &mut a),
            }
            a.post_notices();
            b.post_notices();
        }
    }
}

// clause: RSOCK-DISCONNECT
#[test]
fn end_of_stream_follows_the_data() {
    let (mut a, mut b) = (Side::new(&SIZES), Side::new(&SIZES));
    assert_eq!(a.send(100), 100);
    a.stream.shut_down(true, true);
    a.post_notices();
    assert!(a.stream.shut_by_program() && !a.stream.is_settled());
    while !a.wire.is_empty() {
        deliver(&mut a, &mut b);
    }
    assert_eq!((a.stream.state(), b.stream.state()), (ConnState::Down, ConnState::Down));
    assert!(a.stream.is_settled() && b.stream.at_end() && b.stream.is_shut() && !b.stream.shut_by_program());
    b.recv(1000);
    assert_eq!(b.received, 100);
}

// clause: RSOCK-SHUTDOWN
#[test]
fn directions_end_independently() {
    let (mut a, mut b) = (Side::new(&SIZES), Side::new(&SIZES));
    a.stream.shut_down(false, true);
    a.stream.shut_down(false, true);
    a.post_notices();
    let sent: Vec<_> = a.wire.iter().filter_map(|packet| packet.imm).collect();
    assert_eq!(sent.last(), Some(&Message::Control(Control::Shutdown).encode()));
    assert_eq!(sent.len(), 2, "a grant and one shutdown");
    while !a.wire.is_empty() {
        deliver(&mut a, &mut b);
    }
    assert!(b.stream.at_end() && b.stream.can_send() && b.stream.state() == ConnState::Up);
    assert!(a.stream.is_shut() && !a.stream.at_end());
    assert_eq!(b.send(50), 50);
    b.stream.shut_down(false, true);
    b.post_notices();
    assert_eq!(b.wire.back().unwrap().imm, Some(Message::Control(Control::Disconnect).encode()));
    while !b.wire.is_empty() {
        deliver(&mut b, &mut a);
    }
    assert_eq!((a.stream.state(), b.stream.state()), (ConnState::Down, ConnState::Down));
    a.recv(100);
    assert_eq!(a.received, 50);
}

#[test]
fn shutdown_of_reading_sends_nothing() {
    let mut a = Side::new(&SIZES);
    a.post_notices();
    a.wire.clear();
    a.stream.shut_down(true, false);
    a.post_notices();
    assert!(a.wire.is_empty() && a.stream.at_end() && !a.stream.is_shut());
}

// clause: RSOCK-OVERRUN
#[test]
fn protocol_violation_breaks_the_connection() {
    for imm in [SIZES.recv_buffer + 1, 1 << 29, 3 << 29] {
        let mut a = stream(&SIZES);
        assert_eq!(a.handle_message(imm), Err(Violation));
        assert_eq!(a.state(), ConnState::Broken);
        assert_eq!(a.handle_message(5), Ok(None), "later messages are ignored");
        assert_eq!(a.poll_notice(), None);
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
    assert_eq!(a.state(), ConnState::Up);
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
    a.handle_completion(CompletionKind::Notice);
    assert_eq!(a.poll_notice(), Some(Notice::Probe));
}

// clause: RSOCK-IOMAP
#[test]
fn mapping_follows_targets_and_is_found_by_offset() {
    let (mut a, mut b) = (stream(&SIZES), stream(&SIZES));
    let iomap = Iomap { offset: 1000, target: Target { addr: 0x5000, rkey: 9, len: 100 } };
    let (to, bytes, message) = a.announce_mapping(1, &iomap);
    assert_eq!(to, Target { addr: LIST + 2 * 16 + 24, rkey: 2, len: 24 });
    assert_eq!(b.handle_message(message.encode()), Ok(Some(1)));
    b.set_iomap(1, Iomap::decode_native(bytes));
    b.set_iomap(7, iomap);
    assert_eq!(b.find_mapping(1099), Some(Target { addr: 0x5063, rkey: 9, len: 1 }));
    assert_eq!(b.find_mapping(1100), None);
    assert_eq!(b.find_mapping(999), None);
    assert_eq!(a.mappable_count(), 2);
    let write = b.outgoing.start_write(Target { addr: 0x5063, rkey: 9, len: 1 }, true);
    assert_eq!(write.to.len, 1);
}

// clause: RSOCK-TARGET
#[test]
fn grant_is_encoded_in_the_byte_order_of_the_peer() {
    let other = match ByteOrder::NATIVE {
        ByteOrder::Big => ByteOrder::Little,
        ByteOrder::Little => ByteOrder::Big,
    };
    let peer = ConnData { order: other, ..conn_data(&SIZES) };
    let mut a = Stream::new(&SIZES, Target { addr: BUFFER, rkey: 1, len: 8192 }, peer);
    let Some(Notice::Entry { bytes, .. }) = a.poll_notice() else { panic!("no grant") };
    assert_eq!(bytes, Target { addr: BUFFER + 4096, rkey: 1, len: 4096 }.encode(other));
}
