//! What no writer does, for tests of readers.

use super::record::{LINE, RecordHeader};
use super::writer::Writer;
use std::sync::atomic::Ordering;

impl Writer {
    /// Publishes a record that no writer writes.
    pub fn break_it(&self) {
        self.memory.header(self.tail).store(u64::MAX, Ordering::Release);
    }

    /// Overwrites all data of the ring, published or not.
    pub fn overwrite_all(&self, byte: u8) {
        let bytes = vec![byte; self.memory.size() as usize];
        self.memory.room(0, bytes.len()).unwrap().put(&bytes).unwrap();
    }

    /// Puts a valid header on every line: whoever reads to the end of such a ring begins again.
    pub fn put_header_on_every_line(&self) {
        let header = RecordHeader {
            len: 16,
            segment: 16,
            joined: 1,
            traffic_class: 0,
            hop_limit: 64,
            sealed: false,
            goes_on: true,
        };
        assert_eq!(header.extent(), LINE);
        for line in 0..self.memory.size() / LINE {
            self.memory.header(line * LINE).store(header.to_word(), Ordering::Release);
        }
    }
}
