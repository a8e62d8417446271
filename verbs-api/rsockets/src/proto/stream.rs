//! A connected stream: both directions, the few messages about the connection itself, and how it
//! ends.

use super::Violation;
use super::conn::{ConnData, IOMAP_LEN, Iomap, TARGET_LEN, Target};
use super::incoming::{Grant, Incoming};
use super::message::{Control, Message};
use super::outgoing::Outgoing;

/// Places in the send queue for messages about the connection; data never takes them, so that both
/// sides can always tell each other that there is room again.
pub(crate) const CONTROL_SLOTS: u16 = 4;

/// What a side decides before it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Places in the send queue; more than [`CONTROL_SLOTS`].
    pub(crate) send_queue: u16,
    /// Messages that the peer may send before it hears again.
    pub(crate) recv_queue: u16,
    /// Bytes.
    pub(crate) send_buffer: u32,
    /// Bytes; even.
    pub(crate) recv_buffer: u32,
    /// Mappings that the peer may make.
    pub(crate) iomaps: u16,
}

/// Whether the connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// It does.
    Up,
    /// One side has ended it.
    Down,
    /// It broke.
    Broken,
}

/// A message about the connection that is to be posted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A WRITE of nothing with this immediate data.
    Message(Message),
    /// A WRITE of these bytes with this immediate data.
    Entry { to: Target, bytes: [u8; TARGET_LEN], message: Message },
    /// A WRITE of nothing, without immediate data: it only shows whether the peer answers.
    Probe,
}

impl Notice {
    /// What its completion will be.
    pub(crate) const fn done(&self) -> Done {
        match self {
            Self::Message(Message::Control(Control::Disconnect)) => Done::Disconnect,
            _ => Done::Notice,
        }
    }
}

/// What a completed request was, by which it gives back what it held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Done {
    /// A write or message of the data path, that held so many bytes of the send buffer.
    Data(u32),
    /// A notice.
    Notice,
    /// The notice that said goodbye.
    Disconnect,
}

/// A stream. The driver posts what it is given, reports what completes and arrives, and moves the
/// bytes.
#[derive(Debug)]
pub(crate) struct Stream {
    link: Link,
    /// The peer may send more.
    readable: bool,
    /// This side may send more.
    writable: bool,
    /// This side has said that it sends no more.
    shut: bool,
    /// What is still to be said about the end, and whether to probe.
    pending_end: Option<Control>,
    probe: bool,
    control_free: u16,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    /// Offset of the receive buffer in the peer's eyes.
    buffer: Target,
    peer: ConnData,
    peer_target: u32,
    iomaps: Vec<Option<Iomap>>,
}

impl Stream {
    /// The stream of a connection. `buffer` is where the own receive buffer begins, for the peer's
    /// eyes.
    pub(crate) fn new(sizes: &Sizes, buffer: Target, peer: ConnData) -> Self {
        let slots = sizes.send_queue.saturating_sub(CONTROL_SLOTS);
        Self {
            link: Link::Up,
            readable: true,
            writable: true,
            shut: false,
            pending_end: None,
            probe: false,
            control_free: CONTROL_SLOTS,
            outgoing: Outgoing::new(slots, sizes.send_buffer, peer.credits, peer.data),
            incoming: Incoming::new(sizes.recv_buffer / 2, sizes.recv_queue),
            buffer,
            peer,
            peer_target: 1,
            iomaps: vec![None; usize::from(sizes.iomaps)],
        }
    }

    /// Whether the connection stands.
    pub(crate) const fn link(&self) -> Link {
        self.link
    }

    /// Nothing more will come than what is here.
    pub(crate) const fn at_end(&self) -> bool {
        !self.readable
    }

    /// Nothing can be sent any more.
    pub(crate) const fn is_shut(&self) -> bool {
        !self.writable
    }

    /// The program itself ended its sending.
    pub(crate) const fn shut_by_us(&self) -> bool {
        self.shut
    }

    /// Whether a send would find room for a byte.
    pub(crate) fn can_send(&self) -> bool {
        self.outgoing.room() > 0
    }

    /// Whether everything that was posted is complete, or never will be.
    pub(crate) fn is_settled(&self) -> bool {
        let said = self.pending_end.is_none() && self.control_free == CONTROL_SLOTS;
        self.link != Link::Up || said && self.outgoing.is_done()
    }

    /// A message came as immediate data. It may ask for an entry of the table of mappings to be
    /// read and handed to [`set_iomap`](Self::set_iomap).
    ///
    /// # Errors
    /// One that the peer must not send; the stream is broken then.
    pub(crate) fn handle_message(&mut self, imm: u32) -> Result<Option<u16>, Violation> {
        if self.link != Link::Up {
            return Ok(None);
        }
        let asked = self.message(imm);
        if asked.is_err() {
            self.break_off();
        }
        asked
    }

    fn message(&mut self, imm: u32) -> Result<Option<u16>, Violation> {
        match Message::decode(imm)? {
            Message::Data(len) => self.incoming.arrived(len)?,
            Message::Credit(up_to) => self.outgoing.allow(up_to),
            Message::Iomap(index) => {
                self.incoming.message_read();
                return Ok(Some(index));
            }
            Message::Control(control) => self.controlled(control),
        }
        Ok(None)
    }

    // clause: RSOCK-SHUTDOWN, RSOCK-DISCONNECT
    const fn controlled(&mut self, control: Control) {
        match control {
            Control::Disconnect => self.end(),
            Control::Shutdown if self.writable => self.readable = false,
            Control::Shutdown => self.end(),
            Control::Keepalive | Control::Unknown => {}
        }
    }

    /// A posted request is complete.
    pub(crate) fn handle_done(&mut self, done: Done) {
        match done {
            Done::Data(held) => self.outgoing.done(held),
            Done::Notice => self.control_free = (self.control_free + 1).min(CONTROL_SLOTS),
            Done::Disconnect => self.end(),
        }
    }

    /// The connection is over: the peer or its connection manager said so. What has arrived can
    /// still be read.
    pub(crate) const fn end(&mut self) {
        if matches!(self.link, Link::Up) {
            self.link = Link::Down;
        }
        self.readable = false;
        self.writable = false;
    }

    /// The connection broke: a request failed, or the peer broke the protocol.
    pub(crate) const fn break_off(&mut self) {
        if matches!(self.link, Link::Up) {
            self.end();
            self.link = Link::Broken;
        }
    }

    /// Ends directions, and leaves a [`Notice`] where the peer is to know. Ending only what comes
    /// in tells nobody.
    // clause: RSOCK-SHUTDOWN, RSOCK-DISCONNECT
    pub(crate) fn shut_down(&mut self, read: bool, write: bool) {
        let (was_readable, was_writable) = (self.readable, self.writable);
        self.readable &= !read;
        self.writable &= !write;
        self.shut |= write;
        let changed = was_readable != self.readable || was_writable != self.writable;
        if self.link != Link::Up || !changed {
            return;
        }
        match (self.readable, self.writable) {
            (false, false) => self.pending_end = Some(Control::Disconnect),
            (true, false) => self.pending_end = Some(Control::Shutdown),
            _ => {}
        }
    }

    /// The peer has been silent for long: ask whether it lives.
    // clause: RSOCK-KEEPALIVE
    pub(crate) const fn keep_alive(&mut self) {
        self.probe = true;
    }

    /// The next message about the connection, until there is none. To be asked after everything
    /// that happens.
    // clause: RSOCK-CONTROL-SLOTS
    pub(crate) fn poll_notice(&mut self) -> Option<Notice> {
        if self.link != Link::Up || self.control_free == 0 {
            return None;
        }
        let notice = self.next_notice()?;
        self.control_free -= 1;
        Some(notice)
    }

    fn next_notice(&mut self) -> Option<Notice> {
        if self.incoming.wants_grant() {
            return Some(self.granted());
        }
        if let Some(control) = self.pending_end.take() {
            return Some(Notice::Message(Message::Control(control)));
        }
        std::mem::take(&mut self.probe).then_some(Notice::Probe)
    }

    // clause: RSOCK-TARGET-ORDER
    fn granted(&mut self) -> Notice {
        let Grant { up_to, half } = self.incoming.grant();
        let message = Message::Credit(up_to);
        let Some(offset) = half else {
            return Notice::Message(message);
        };
        let addr = self.buffer.addr.wrapping_add(u64::from(offset));
        let entry = Target { addr, rkey: self.buffer.rkey, len: self.buffer.len / 2 };
        let list = self.peer.targets;
        let place = u64::from(self.peer_target) * TARGET_LEN as u64;
        self.peer_target = (self.peer_target + 1) % list.len;
        let to = Target { addr: list.addr.wrapping_add(place), rkey: list.rkey, len: TARGET_LEN as u32 };
        Notice::Entry { to, bytes: entry.encode(self.peer.order), message }
    }

    /// How many buffers of its own this side can map for the peer.
    pub(crate) fn mappable(&self) -> u16 {
        self.peer.iomaps.unwrap_or(0)
    }

    /// The WRITE that puts entry `index` into the peer's table; a message announces it. The caller
    /// asks [`may_message`](Outgoing::may_message) before.
    // clause: RSOCK-IOMAP
    pub(crate) fn map(&mut self, index: u16, iomap: &Iomap) -> (Target, [u8; IOMAP_LEN], Message) {
        self.outgoing.message();
        let list = self.peer.targets;
        let place = u64::from(list.len) * TARGET_LEN as u64 + u64::from(index) * IOMAP_LEN as u64;
        let to = Target { addr: list.addr.wrapping_add(place), rkey: list.rkey, len: IOMAP_LEN as u32 };
        (to, iomap.encode(self.peer.order), Message::Iomap(index))
    }

    /// The peer has mapped a buffer of its own.
    pub(crate) fn set_iomap(&mut self, index: u16, iomap: Iomap) {
        if let Some(entry) = self.iomaps.get_mut(usize::from(index)) {
            *entry = Some(iomap);
        }
    }

    /// Where `offset` of the peer's mappings is, and how many bytes follow there.
    pub(crate) fn mapped(&self, offset: u64) -> Option<Target> {
        self.iomaps.iter().flatten().find_map(|iomap| iomap.at(offset))
    }
}

#[cfg(test)]
mod tests;
