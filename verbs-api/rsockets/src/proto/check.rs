//! Invariants of a stream under any peer, and of datagram headers, for the fuzz target.

use super::conn::{CONN_DATA_LEN, ConnData, Target};
use super::datagram::{UdpHeader, decode_source, encode_source};
use super::message::Message;
use super::stream::{CONTROL_SLOTS, CompletionKind, ConnState, Sizes, Stream};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// Sizes small enough that a few steps exhaust them.
const SIZES: Sizes = Sizes { send_queue: 8, recv_queue: 4, send_buffer: 4096, recv_buffer: 512, iomaps: 2 };

/// Decodes `bytes` as datagram headers, then as a peer's connection data followed by steps. A step
/// is a message of the peer, a call of the program or a completion of the device.
///
/// # Panics
/// If a decoded header does not encode to the same bytes, more is unread than the buffer holds, or
/// more is posted than the queue holds.
pub fn check_protocol(bytes: &[u8]) {
    headers(bytes);
    let Ok(peer) = ConnData::decode(bytes) else { return };
    assert_eq!(ConnData::decode(&peer.encode()), Ok(peer));
    let mut steps = bytes.iter().copied().skip(CONN_DATA_LEN);
    let buffer = Target { addr: 1 << 40, rkey: 7, len: SIZES.recv_buffer };
    let (mut stream, mut unread) = (Stream::new(&SIZES, buffer, peer), 0);
    // Posted requests that are not complete.
    let (mut data, mut notices) = (VecDeque::new(), VecDeque::new());
    while let Some(step) = steps.next() {
        let mut number = || u32::from_be_bytes(std::array::from_fn(|_| steps.next().unwrap_or_default()));
        match step % 8 {
            0 => unread += handle(&mut stream, number()),
            // A message with a short length, which a random number rarely is.
            1 => unread += handle(&mut stream, u32::from(step >> 3)),
            2 => {
                let len = (number() % 2048).min(stream.outgoing.sendable_len());
                if len > 0 {
                    let held = stream.outgoing.start_data(len, step & 8 != 0).buffer_bytes();
                    data.push_back(CompletionKind::Data(held));
                }
            }
            3 | 4 => {
                let done = if step % 8 == 3 { data.pop_front() } else { notices.pop_front() };
                if let Some(done) = done {
                    stream.handle_completion(done);
                }
            }
            5 => {
                let part = stream.incoming.peek(u32::from(step >> 3), 100);
                assert!(part.start <= part.end && part.end <= SIZES.recv_buffer);
                let len = stream.incoming.peek(0, 100).len() as u32;
                stream.incoming.consume(len);
                unread -= len;
            }
            6 => {
                if stream.outgoing.poll_target_index().is_some() {
                    let target = Target { addr: number().into(), rkey: number(), len: number() };
                    stream.outgoing.set_target(target);
                }
            }
            _ => match step >> 3 & 3 {
                0 => stream.keep_alive(),
                how => stream.shut_down(how & 1 != 0, how & 2 != 0),
            },
        }
        notices.extend(std::iter::from_fn(|| stream.poll_notice()).map(|notice| notice.completion_kind()));
        assert!(unread <= SIZES.recv_buffer && stream.incoming.has_data() == (unread > 0));
        assert!(notices.len() <= usize::from(CONTROL_SLOTS));
        assert!(data.len() <= usize::from(SIZES.send_queue - CONTROL_SLOTS));
        let held: u32 = data.iter().map(|done| if let CompletionKind::Data(held) = done { *held } else { 0 }).sum();
        assert!(held <= SIZES.send_buffer && stream.outgoing.buffer_room() == SIZES.send_buffer - held);
    }
}

/// Handles a message of the peer; returns the number of bytes that the peer has written.
fn handle(stream: &mut Stream, imm: u32) -> u32 {
    let (was_up, message) = (stream.state() == ConnState::Up, Message::decode(imm));
    if let Ok(message) = message {
        assert_eq!(Message::decode(message.encode()), Ok(message));
    }
    let handled = stream.handle_message(imm);
    assert!(handled.is_ok() || stream.state() == ConnState::Broken, "a violation ends the stream");
    match message {
        Ok(Message::Data(len)) if was_up && handled.is_ok() => len,
        _ => 0,
    }
}

fn headers(bytes: &[u8]) {
    for from in [SocketAddr::from((Ipv4Addr::LOCALHOST, 1)), (Ipv6Addr::LOCALHOST, 1).into()] {
        if let Some((header, data)) = UdpHeader::decode(bytes, from) {
            let packet = [header.encode().as_slice(), data].concat();
            assert_eq!(UdpHeader::decode(&packet, from), Some((header, data)));
        }
    }
    if let Some((source, data)) = decode_source(bytes) {
        let packet = [encode_source(source).as_slice(), data].concat();
        assert_eq!(decode_source(&packet), Some((source, data)));
    }
}
