//! [`UdQp`]: a UD queue pair on one local address, with its send and receive buffers.

use crate::completions::{BATCH, Completions};
use crate::config::Config;
use crate::errno::{self, os};
use crate::proto::datagram::{self, HeaderBytes, MAX_DATAGRAM};
use crate::stream::SendCursor;
use roxe::{
    Access, AddressHandle, Gid, MemoryRegion, ProtectionDomain, Qkey, Qpn, QueuePair, Service, WcStatus,
    WorkCompletion, WorkRequest,
};
use roxe_check::for_library;
use std::io;
use std::net::{IpAddr, SocketAddr};

/// Q_Key of datagrams between sockets (`RDMA_UDP_QKEY`).
const QKEY: Qkey = Qkey(0x0123_4567);
/// Bytes of the GRH before each received datagram.
const GRH_LEN: usize = 40;
/// Bytes of a slot of the receive buffer.
const SLOT_LEN: usize = GRH_LEN + MAX_DATAGRAM;
/// Longest queue, in datagrams.
pub(crate) const MAX_DEPTH: u32 = 16384;
/// Bit in `wr_id` of receive requests. The lower bits of a `wr_id` are the slot.
const RECV: u64 = 1 << 63;

/// Queue lengths in datagrams, and the inline limit in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Depth {
    pub(crate) sends: u16,
    pub(crate) recvs: u16,
    pub(crate) inline: u32,
}

impl Depth {
    /// Returns queue lengths such that both the queue and the buffer hold that many datagrams; at
    /// least one.
    pub(crate) fn new(settings: &Config) -> Self {
        let fits = |queue: u16, buffer: u32| {
            let datagrams = u32::from(queue).min(buffer / MAX_DATAGRAM as u32).clamp(1, MAX_DEPTH);
            datagrams as u16
        };
        Self {
            sends: fits(settings.sizes.send_queue, settings.sizes.send_buffer),
            recvs: fits(settings.sizes.recv_queue, settings.sizes.recv_buffer),
            inline: settings.inline.min(MAX_DATAGRAM as u32),
        }
    }
}

/// A datagram in the receive buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    pub(crate) slot: u16,
    pub(crate) from: SocketAddr,
    /// Length in bytes, without the header.
    len: usize,
    /// Bytes of the header.
    header: usize,
}

/// A UD queue pair on one local address, and its buffers.
#[derive(Debug)]
pub(crate) struct UdQp {
    ip: IpAddr,
    qp: QueuePair,
    pub(crate) completions: Completions,
    pd: ProtectionDomain,
    gid_index: u8,
    send_buffer: MemoryRegion,
    recv_buffer: MemoryRegion,
    /// Free slots of the send buffer.
    free: Vec<u16>,
    depth: Depth,
    /// Longest datagram with its header, in bytes.
    max_datagram: usize,
}

impl UdQp {
    /// Creates the queue pair on the device that has the address `ip`.
    ///
    /// # Errors
    /// EADDRNOTAVAIL if no device has it.
    pub(crate) fn open(ip: IpAddr, depth: Depth) -> io::Result<Self> {
        for_library(|| Self::open_device(ip, depth))
    }

    fn open_device(ip: IpAddr, depth: Depth) -> io::Result<Self> {
        let gid = Gid::from(ip);
        for device in roxe::devices().map_err(errno::io_error)?.iter() {
            let context = device.open().map_err(errno::io_error)?;
            if let Some(entry) = context.gid_entries().iter().find(|entry| entry.gid == gid) {
                return Self::build(&context, ip, entry.index, depth).map_err(errno::io_error);
            }
        }
        Err(os(libc::EADDRNOTAVAIL))
    }

    fn build(context: &roxe::Context, ip: IpAddr, gid_index: u8, depth: Depth) -> Result<Self, roxe::Error> {
        let pd = context.alloc_pd()?;
        let (sends, recvs) = (u32::from(depth.sends), u32::from(depth.recvs));
        let completions = Completions::create(context, sends + recvs)?;
        let qp = pd
            .create_qp(&completions.cq, &completions.cq)
            .service(Service::Ud)
            .qkey(QKEY)
            .gid_index(gid_index)
            .max_send_wr(sends)
            .max_recv_wr(recvs)
            .max_send_sge(1)
            .max_recv_sge(1)
            .max_inline_data(depth.inline)
            .sq_sig_all()
            .build()?;
        let mtu = context.port_attr()?.active_mtu.bytes() as usize;
        let ud_qp = Self {
            send_buffer: pd.alloc_mr(usize::from(depth.sends) * MAX_DATAGRAM, Access::LOCAL_WRITE)?,
            recv_buffer: pd.alloc_mr(usize::from(depth.recvs) * SLOT_LEN, Access::LOCAL_WRITE)?,
            free: (0..depth.sends).collect(),
            max_datagram: mtu.min(MAX_DATAGRAM),
            ip,
            qp,
            completions,
            pd,
            gid_index,
            depth,
        };
        for slot in 0..depth.recvs {
            ud_qp.post_recv(slot)?;
        }
        ud_qp.qp.activate()?;
        Ok(ud_qp)
    }

    pub(crate) const fn ip(&self) -> IpAddr {
        self.ip
    }

    pub(crate) fn qpn(&self) -> u32 {
        self.qp.qp_num().get()
    }

    /// Returns the longest data after a header of `header` bytes.
    pub(crate) const fn max_payload(&self, header: usize) -> usize {
        self.max_datagram.saturating_sub(header)
    }

    pub(crate) const fn can_send(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns true if all posted sends are complete.
    pub(crate) const fn has_sent_all(&self) -> bool {
        self.free.len() == self.depth.sends as usize
    }

    pub(crate) fn address_handle(&self, ip: IpAddr) -> io::Result<AddressHandle> {
        self.pd.create_ah(Gid::from(ip), self.gid_index).map_err(errno::io_error)
    }

    /// Sends `header` and `data`. Returns false if no slot is free.
    pub(crate) fn send(
        &mut self,
        to: (AddressHandle, Qpn),
        header: &HeaderBytes,
        data: &mut SendCursor<'_>,
    ) -> Result<bool, roxe::Error> {
        let Some(slot) = self.free.pop() else { return Ok(false) };
        let start = usize::from(slot) * MAX_DATAGRAM;
        let body = start + header.as_slice().len();
        let end = body + data.remaining();
        self.send_buffer.write(start, header.as_slice())?;
        data.write_to(&self.send_buffer, body..end)?;
        let sges = [self.send_buffer.slice(start..end)?];
        let sent = self.qp.post_send(&WorkRequest::send(&sges).to(&to.0, to.1, QKEY).wr_id(slot.into()));
        if sent.is_err() {
            self.free.push(slot);
        }
        sent.map(|()| true)
    }

    /// Processes completions. Passes each datagram to `arrived`, which returns true to keep the
    /// slot until [`repost`](Self::repost). Returns true if there was any completion.
    pub(crate) fn take_completions(&mut self, mut arrived: impl FnMut(Received) -> bool) -> bool {
        let mut any = false;
        let mut batch = [WorkCompletion::default(); BATCH];
        while let count @ 1.. = self.completions.cq.poll(&mut batch).map_or(0, <[_]>::len) {
            any = true;
            for completion in &batch[..count] {
                match completion.wr_id() {
                    id if id & RECV == 0 => self.free.push(id as u16),
                    id => self.received(id as u16, completion, &mut arrived),
                }
            }
        }
        any
    }

    fn received(&self, slot: u16, completion: &WorkCompletion, arrived: &mut impl FnMut(Received) -> bool) {
        let len = (completion.byte_len() as usize).saturating_sub(GRH_LEN);
        let kept = completion.status() == WcStatus::Success && self.parse_slot(slot, len).is_some_and(&mut *arrived);
        if !kept {
            self.repost(slot);
        }
    }

    /// Returns the datagram in `slot`, if it has the header of a socket.
    fn parse_slot(&self, slot: u16, len: usize) -> Option<Received> {
        let mut start = [0; datagram::MAX_HEADER];
        let seen = len.min(start.len());
        self.recv_buffer.read(payload_offset(slot), &mut start[..seen]).ok()?;
        let (from, rest) = datagram::decode_source(&start[..seen])?;
        let header = seen - rest.len();
        Some(Received { slot, from, len: len - header, header })
    }

    pub(crate) fn bytes(&self, arrived: &Received) -> Result<Vec<u8>, roxe::Error> {
        let start = payload_offset(arrived.slot) + arrived.header;
        self.recv_buffer.to_vec(start..start + arrived.len)
    }

    pub(crate) fn repost(&self, slot: u16) {
        // Fails only if the queue pair is broken, which then receives nothing more.
        let _ = self.post_recv(slot);
    }

    fn post_recv(&self, slot: u16) -> Result<(), roxe::Error> {
        let start = usize::from(slot) * SLOT_LEN;
        self.qp.post_recv(RECV | u64::from(slot), &[self.recv_buffer.slice(start..start + SLOT_LEN)?])
    }
}

/// Returns the offset in the receive buffer of the datagram in `slot`, after the GRH.
fn payload_offset(slot: u16) -> usize {
    usize::from(slot) * SLOT_LEN + GRH_LEN
}
