//! The memory of messages in the registered area of each side, and the requests to the agents that
//! write and read it.

use super::CheckError;
use crate::client::{Client, ClientError};
use crate::plan::UNTOUCHED;
use crate::protocol::{Command, from_runs, limits, to_hex};
use serde_json::{Value, json};
use std::ops::Range;

/// Length of the registered area of each side, in bytes.
pub(super) const AREA_LEN: usize = 7 << 20;
/// Length in bytes of the guard on each side of a piece of a message. Guards must stay unchanged.
pub(super) const GUARD_LEN: usize = 64;
/// Value of the guards of source memory. It differs from the value at the destination, so that a
/// byte copied beyond the message is detected.
pub(super) const SOURCE_GUARD: u8 = 0x5a;
/// Length in bytes of the GRH before a received datagram.
pub(super) const GRH_LEN: usize = 40;

/// Memory of one message inside the area: up to three pieces, with guards around each.
pub(super) struct Slot {
    /// Range of the slot within the area.
    pub(super) range: Range<usize>,
    /// Range of the GRH within the slot.
    pub(super) grh: Option<Range<usize>>,
    /// Ranges of the message's pieces within the slot.
    pub(super) pieces: Vec<Range<usize>>,
}

impl Slot {
    /// Returns the slot `index` for a message of `size` bytes. The first piece has `split` bytes; 0
    /// means a single piece.
    pub(super) fn new(index: u32, size: usize, split: usize, has_grh: bool) -> Self {
        let stride = (size + GRH_LEN + 4 * GUARD_LEN).next_multiple_of(64);
        let start = index as usize * stride;
        let mut offset = GUARD_LEN;
        let mut piece = |len: usize| {
            let piece = offset..offset + len;
            offset += len + GUARD_LEN;
            piece
        };
        let grh = has_grh.then(|| piece(GRH_LEN));
        let pieces = if split == 0 { vec![piece(size)] } else { vec![piece(split), piece(size - split)] };
        Self { range: start..start + stride, grh, pieces }
    }

    /// Returns the scatter/gather elements of a request: one for each piece that is not empty.
    pub(super) fn sge(&self, mr: u64) -> Value {
        let pieces = self.grh.iter().chain(&self.pieces).filter(|piece| !piece.is_empty());
        let entries =
            pieces.map(|piece| json!({"mr": mr, "offset": self.range.start + piece.start, "length": piece.len()}));
        entries.collect()
    }

    /// Returns the expected bytes of the whole slot: the message between guards.
    pub(super) fn image(&self, message: &[u8], guard: u8) -> Vec<u8> {
        let mut image = vec![guard; self.range.len()];
        let mut rest = message;
        for piece in &self.pieces {
            let (bytes, others) = rest.split_at(piece.len());
            image[piece.clone()].copy_from_slice(bytes);
            rest = others;
        }
        image
    }

    /// Returns the offset of the message's first byte within the area.
    pub(super) fn start(&self) -> usize {
        self.range.start + self.pieces[0].start
    }
}

pub(super) fn wrong<T>(text: impl Into<String>) -> Result<T, CheckError> {
    Err(CheckError::Wrong(text.into()))
}

/// Compares a slot with its image. `memory` names the slot's memory in the error; `start` is the
/// offset of the message within the slot.
pub(super) fn compare(memory: &str, serial: u32, image: &[u8], found: &[u8], start: usize) -> Result<(), CheckError> {
    let Some(first) = image.iter().zip(found).position(|(image, found)| image != found) else { return Ok(()) };
    let part = |bytes: &[u8]| to_hex(&bytes[first..bytes.len().min(first + 16)]);
    let count = image.iter().zip(found).filter(|(image, found)| image != found).count();
    let offset = first as i64 - start as i64;
    let (found, image) = (part(found), part(image));
    wrong(format!(
        "{memory}: {count} bytes differ, the first at {offset} of message {serial}: {found} instead of {image}"
    ))
}

/// Polls at most `max` completions. Waits up to `wait_ms` milliseconds until there are `min`.
pub(super) fn poll(
    client: &mut Client,
    cq: u64,
    max: usize,
    min: usize,
    wait_ms: u64,
) -> Result<Vec<Value>, ClientError> {
    let wait = wait_ms.min(limits::WAIT_MS);
    let mut answer = client.call(Command::Poll, json!({"cq": cq, "max": max, "min": min, "timeout_ms": wait}))?;
    Ok(answer["completions"].as_array_mut().map_or_else(Vec::new, std::mem::take))
}

/// Sends the queued requests and waits for their answers. Fails with the first refusal.
pub(super) fn send_all(client: &mut Client) -> Result<(), ClientError> {
    client.answers()?.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(())
}

/// Queues a request to write `bytes` into the area.
pub(super) fn write(client: &mut Client, mr: u64, start: usize, bytes: &[u8]) -> Result<(), ClientError> {
    for (offset, part) in (start..).step_by(limits::TRANSFER).zip(bytes.chunks(limits::TRANSFER)) {
        client.ask(Command::Write, json!({"mr": mr, "offset": offset, "hex": to_hex(part)}))?;
    }
    Ok(())
}

/// Queues a request to fill a part of the area with [`UNTOUCHED`].
pub(super) fn fill_untouched(client: &mut Client, mr: u64, range: Range<usize>) -> Result<(), ClientError> {
    for offset in range.clone().step_by(limits::TRANSFER) {
        let length = (range.end - offset).min(limits::TRANSFER);
        client.ask(Command::Write, json!({"mr": mr, "offset": offset, "fill": UNTOUCHED, "length": length}))?;
    }
    Ok(())
}

/// Reads a part of the area.
pub(super) fn read(client: &mut Client, mr: u64, range: Range<usize>) -> Result<Vec<u8>, ClientError> {
    let mut bytes = Vec::with_capacity(range.len());
    for offset in range.clone().step_by(limits::TRANSFER) {
        let length = (range.end - offset).min(limits::TRANSFER);
        let answer = client.call(Command::Read, json!({"mr": mr, "offset": offset, "length": length, "runs": true}))?;
        let part = from_runs(&answer["runs"], length);
        bytes.extend(
            part.ok_or_else(|| ClientError::Protocol("the bytes do not have the requested length".to_owned()))?,
        );
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_has_the_message_in_pieces_between_guards() {
        let slot = Slot::new(1, 5, 2, true);
        let image = slot.image(&[1, 2, 3, 4, 5], 9);
        let pieces: Vec<_> = slot.pieces.iter().flat_map(|piece| image[piece.clone()].to_vec()).collect();
        assert_eq!((pieces, image.iter().filter(|byte| **byte == 9).count()), (vec![1, 2, 3, 4, 5], image.len() - 5));
        assert!(slot.grh.is_some_and(|grh| grh.end < slot.pieces[0].start && slot.range.start == image.len()));
    }
}
