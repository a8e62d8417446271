//! What must hold of reading a ring whatever is in it, for tests and fuzz targets.

use super::reader::Reader;
use super::record::{LINE, MAX_RUN, Record, record_len};
use super::writer::Writer;

/// Puts `bytes` into a ring as its writer might, and reads it until nothing is there: nothing
/// outside of a record is shown, and once around it is all read that the writer has left.
pub fn check_ring(bytes: &[u8]) {
    const SMALLEST: usize = 64 << 10;
    let Ok((writer, fd)) = Writer::create(SMALLEST) else { return };
    let Ok(reader) = Reader::open(&fd, SMALLEST) else { return };
    let len = bytes.len().min(SMALLEST);
    writer.memory.room(0, len).zip(bytes.get(..len)).and_then(|(room, bytes)| room.put(bytes));
    let (mut copy, mut records) = (vec![0; MAX_RUN], 0);
    while reader.read_so_far() < reader.size() {
        let before = reader.read_so_far();
        let take = |Record { meta, bytes, joined }: Record<'_>| {
            assert!((1..=MAX_RUN).contains(&meta.len) && (1..=meta.len).contains(&meta.segment) && joined > 0);
            assert_eq!(bytes.len(), meta.len);
            assert!(bytes.copy_to(&mut copy[..meta.len]).is_ok());
            records += 1;
        };
        if reader.next(take) != Ok(true) {
            break;
        }
        let step = reader.read_so_far() - before;
        assert!((LINE..=record_len(MAX_RUN)).contains(&step) && step.is_multiple_of(LINE), "a step of {step}");
    }
    assert!(records <= SMALLEST as u64 / LINE);
}
