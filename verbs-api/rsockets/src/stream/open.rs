//! The driver of a stream that is connecting or connected. It posts the work requests that the
//! protocol (`proto/stream.rs`) decides on, and reports completions and received messages to it.

use super::cursor::{RecvCursor, SendCursor};
use super::endpoint::Mappings;
use super::endpoint::{Endpoint, RECV, index_range, remote_addr};
use super::settings::Settings;
use crate::completions::BATCH;
use crate::errno;
use crate::errno::os;
use crate::proto::conn::{ConnData, Target};
use crate::proto::message::Message;
use crate::proto::stream::{CompletionKind, ConnState, Notice, Stream, Write};
use roxe::cm::{CmEvent, CmEventKind, CmId, ConnParam, EventChannel, IdOption};
use roxe::{Sge, WcStatus, WorkCompletion, WorkRequest};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Time limit of resolving the address, and again of resolving the route.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(8);

/// A stream that is connecting.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(super) id: CmId,
    /// Queue pair and memory; `None` before the connection request is sent.
    endpoint: Option<Endpoint>,
}

impl Opening {
    pub(crate) fn start(id: CmId, addr: SocketAddr) -> io::Result<Self> {
        id.resolve_addr(None, addr, RESOLVE_TIMEOUT).map_err(errno::io_error)?;
        Ok(Self { id, endpoint: None })
    }

    /// Continues after `event`; returns the connection when it is established.
    ///
    /// # Errors
    /// The errno of a failed connection; ENOTSUP if the peer's private data is not of rsockets.
    pub(crate) fn handle(&mut self, event: CmEvent, settings: &Settings) -> io::Result<Option<Open>> {
        match event.kind() {
            CmEventKind::AddrResolved => match settings.path {
                Some(path) => self.id.set_option(IdOption::Path(path)).map_err(errno::io_error)?,
                None => self.id.resolve_route(RESOLVE_TIMEOUT).map_err(errno::io_error)?,
            },
            CmEventKind::RouteResolved => self.request_connection(settings)?,
            CmEventKind::AddrChange | CmEventKind::TimewaitExit => {}
            _ => {
                let answer = event.expect(CmEventKind::Established).map_err(|failed| os(failed.errno()))?;
                let peer = ConnData::decode(answer.private_data()).map_err(|_| os(libc::ENOTSUP))?;
                let endpoint = self.endpoint.take().ok_or_else(|| os(libc::EPROTO))?;
                return Ok(Some(Open::new(self.id.clone(), endpoint, peer, settings.inline, true)));
            }
        }
        Ok(None)
    }

    fn request_connection(&mut self, settings: &Settings) -> io::Result<()> {
        let endpoint = Endpoint::build(&self.id, settings.sizes(), settings.inline)?;
        let param = ConnParam {
            private_data: endpoint.conn_data().encode().to_vec(),
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: true,
            ..ConnParam::default()
        };
        self.id.connect(&param).map_err(errno::io_error)?;
        self.endpoint = Some(endpoint);
        Ok(())
    }
}

/// Longest first WRITE of a call, in bytes. Short, so that the peer can start to read early; the
/// limit doubles with each further WRITE.
const FIRST_WRITE: u32 = 2048;
/// Longest WRITE, in bytes.
const MAX_WRITE: u32 = 65536;
/// Longest inline data, in bytes.
const MAX_INLINE: u32 = 512;

/// `wr_id` of a notice, and of the notice of a disconnect. The `wr_id` of data is the number of
/// bytes that it holds in the send buffer.
const NOTICE: u64 = 1 << 32;
const DISCONNECT: u64 = 2 << 32;

/// A connected stream.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) endpoint: Endpoint,
    pub(crate) stream: Stream,
    pub(super) id: CmId,
    /// Longest data that is sent inline, in bytes.
    inline: u32,
    /// True once the connection manager or the peer has confirmed the connection.
    pub(crate) established: bool,
    pub(crate) maps: Mappings,
}

impl Open {
    pub(crate) fn new(id: CmId, endpoint: Endpoint, peer: ConnData, inline: u32, established: bool) -> Self {
        let stream = Stream::new(&endpoint.sizes, endpoint.buffer(), peer);
        Self { endpoint, stream, id, inline: inline.min(MAX_INLINE), established, maps: Mappings::default() }
    }

    pub(crate) fn disconnect(&self) {
        // Fails if the peer disconnected first and was answered.
        let _ = self.id.disconnect();
    }

    /// Processes completions and events, and posts the notices that they cause. Returns true if
    /// there were any. `watched` is true if a thread sleeps or is about to.
    pub(crate) fn progress(&mut self, channel: &EventChannel, watched: bool) -> bool {
        self.endpoint.completions.take_events(watched);
        let completed = self.take_completions();
        let had_events = self.take_events(channel);
        self.post_notices();
        completed || had_events
    }

    fn take_events(&mut self, channel: &EventChannel) -> bool {
        let mut any = false;
        while let Some(event) = channel.try_next() {
            any = true;
            match event.kind() {
                CmEventKind::Established => self.established = true,
                CmEventKind::Disconnected => {
                    // Data that arrived before the disconnect is in the CQ by now.
                    self.take_completions();
                    self.stream.end();
                    self.disconnect();
                }
                CmEventKind::Rejected | CmEventKind::Unreachable | CmEventKind::ConnectError => {
                    self.stream.break_off();
                }
                CmEventKind::DeviceRemoval => self.stream.break_off(),
                _ => {}
            }
        }
        any
    }

    fn take_completions(&mut self) -> bool {
        let mut any = false;
        loop {
            let mut batch = [WorkCompletion::default(); BATCH];
            match self.endpoint.completions.cq.poll(&mut batch) {
                Ok([]) => return any,
                Ok(done) => {
                    any = true;
                    let count = done.len();
                    batch[..count].iter().for_each(|completion| self.handle_completion(completion));
                }
                Err(_) => {
                    self.stream.break_off();
                    return true;
                }
            }
        }
    }

    fn handle_completion(&mut self, completion: &WorkCompletion) {
        let success = completion.status() == WcStatus::Success;
        match completion.wr_id() {
            RECV if success => self.handle_receive(completion),
            // A receive fails only when the queue pair is flushed, after the connection has ended.
            RECV => {}
            id => {
                self.stream.handle_completion(completion_kind(id));
                if !success {
                    self.stream.break_off();
                }
            }
        }
    }

    fn handle_receive(&mut self, completion: &WorkCompletion) {
        // The peer sends only after it has established the connection.
        self.established = true;
        let Some(imm) = completion.imm_data() else { return self.stream.break_off() };
        if let Ok(Some(index)) = self.stream.handle_message(imm)
            && let Ok(iomap) = self.endpoint.read_iomap(index)
        {
            self.stream.set_iomap(index, iomap);
        }
        if self.stream.state() == ConnState::Up && self.endpoint.post_recv().is_err() {
            self.stream.break_off();
        }
    }

    /// Posts the pending notices of the protocol.
    pub(crate) fn post_notices(&mut self) {
        if !self.established {
            return;
        }
        while let Some(notice) = self.stream.poll_notice() {
            let wr_id = if notice.completion_kind() == CompletionKind::Disconnect { DISCONNECT } else { NOTICE };
            let no_target = remote_addr(&Target::default());
            match notice {
                Notice::Message(message) => {
                    self.post_or_break_off(WorkRequest::write(&[], no_target).imm(message.encode()).wr_id(wr_id));
                }
                Notice::Entry { to, bytes, message } => {
                    self.post_or_break_off(
                        WorkRequest::write_inline(&bytes, remote_addr(&to)).imm(message.encode()).wr_id(wr_id),
                    );
                }
                Notice::Probe => self.post_or_break_off(WorkRequest::write(&[], no_target).wr_id(wr_id)),
            }
        }
    }

    fn post_or_break_off(&mut self, request: WorkRequest<'_>) {
        if self.endpoint.qp.post_send(&request).is_err() {
            self.stream.break_off();
        }
    }

    /// Sends as much of `data` as possible now.
    pub(crate) fn send(&mut self, data: &mut SendCursor<'_>) {
        let mut limit = FIRST_WRITE;
        while !data.is_done() && !self.stream.is_shut() && self.announce_maps() {
            self.read_next_target();
            let room = self.stream.outgoing.sendable_len();
            if room == 0 {
                return;
            }
            let len = data.remaining_up_to(room.min(limit));
            let buffered = len > self.inline;
            let write = self.stream.outgoing.start_data(len, buffered);
            self.post_write(&write, data, Some(Message::Data(len)));
            limit = (limit * 2).min(MAX_WRITE);
        }
    }

    pub(crate) fn can_send(&mut self) -> bool {
        self.read_next_target();
        self.established && self.stream.can_send()
    }

    /// Reads the next target from the list, if the protocol needs one.
    fn read_next_target(&mut self) {
        if let Some(index) = self.stream.outgoing.poll_target_index() {
            match self.endpoint.take_target(index) {
                Ok(target) => self.stream.outgoing.set_target(target),
                Err(_) => self.stream.break_off(),
            }
        }
    }

    /// Writes as much of `data` as possible now to the peer's mapping at `offset`. Returns false if
    /// nothing is mapped there.
    pub(crate) fn write_mapped(&mut self, data: &mut SendCursor<'_>, offset: u64) -> bool {
        let mut limit = FIRST_WRITE;
        let mut offset = offset;
        while !data.is_done() && !self.stream.is_shut() && self.announce_maps() {
            let Some(target) = self.stream.find_mapping(offset) else { return false };
            if !self.stream.outgoing.can_write() {
                return true;
            }
            let room = self.stream.outgoing.buffer_room();
            let len = data.remaining_up_to(target.len.min(room).min(limit));
            let write = self.stream.outgoing.start_write(Target { len, ..target }, len > self.inline);
            self.post_write(&write, data, None);
            offset = offset.wrapping_add(u64::from(len));
            limit = (limit * 2).min(MAX_WRITE);
        }
        true
    }

    /// Takes the bytes of `write` from `data` and posts it.
    fn post_write(&mut self, write: &Write, data: &mut SendCursor<'_>, message: Option<Message>) {
        let to = remote_addr(&write.to);
        let held = u64::from(write.buffer_bytes());
        let result = if held == 0 {
            let mut scratch = [0; MAX_INLINE as usize];
            let bytes = data.take(write.to.len, &mut scratch);
            self.endpoint.qp.post_send(&with_message(WorkRequest::write_inline(bytes, to).wr_id(held), message))
        } else {
            let mut sges = [Sge::default(); 2];
            match self.fill_send_buffer(write, data, &mut sges) {
                Ok(count) => {
                    let request = WorkRequest::write(&sges[..count], to).wr_id(held);
                    self.endpoint.qp.post_send(&with_message(request, message))
                }
                Err(error) => Err(error),
            }
        };
        if result.is_err() {
            self.stream.break_off();
        }
    }

    /// Copies the bytes of `write` to the send buffer, and sets `sges` to its parts there. Returns
    /// the number of parts.
    fn fill_send_buffer(
        &self,
        write: &Write,
        data: &mut SendCursor<'_>,
        sges: &mut [Sge; 2],
    ) -> Result<usize, roxe::Error> {
        let mut count = 0;
        for part in write.parts.iter().filter(|part| !part.is_empty()) {
            let part = index_range(part);
            sges[count] = self.endpoint.send_buffer.slice(part.clone())?;
            data.write_to(&self.endpoint.send_buffer, part)?;
            count += 1;
        }
        Ok(count)
    }

    /// Announces new mappings to the peer. Returns false while that is not possible.
    fn announce_maps(&mut self) -> bool {
        while let Some((index, iomap)) = self.maps.unannounced() {
            if !self.stream.outgoing.can_send_message() {
                return false;
            }
            let (to, bytes, message) = self.stream.announce_mapping(index, &iomap);
            self.post_or_break_off(WorkRequest::write_inline(&bytes, remote_addr(&to)).imm(message.encode()).wr_id(0));
            self.maps.mark_announced(index);
        }
        true
    }

    /// Copies received data to `room` and, unless `peek`, frees its space in the receive buffer.
    pub(crate) fn recv(&mut self, room: &mut RecvCursor<'_, '_>, peek: bool) {
        let mut seen = 0;
        while !room.is_done() {
            let unread = self.stream.incoming.peek(seen, room.remaining());
            if unread.is_empty() {
                break;
            }
            if room.read_from(&self.endpoint.recv_buffer, index_range(&unread)).is_err() {
                return self.stream.break_off();
            }
            match peek {
                true => seen += unread.end - unread.start,
                false => self.stream.incoming.consume(unread.end - unread.start),
            }
        }
        self.post_notices();
    }
}

fn with_message(request: WorkRequest<'_>, message: Option<Message>) -> WorkRequest<'_> {
    match message {
        Some(message) => request.imm(message.encode()),
        None => request,
    }
}

/// Returns the kind of the completion of a send request.
const fn completion_kind(wr_id: u64) -> CompletionKind {
    match wr_id {
        NOTICE => CompletionKind::Notice,
        DISCONNECT => CompletionKind::Disconnect,
        held => CompletionKind::Data(held as u32),
    }
}
