//! Tests of the writer and the reader of a ring, and of each against a broken other side.

use super::super::memory::Word;
use super::{
    ALIGN, Broken, HEADER_LEN, IpFields, LINE, MAX_RUN, Reader, Record, RecordHeader, SIZE, Writer, check_ring,
    record_len,
};
use crate::link::RxMeta;
use roxe_transport::cx::TxRoom;
use roxe_wire::{ROCE_PORT, icrc};
use std::net::Ipv4Addr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

fn ring() -> (Writer, Reader) {
    let (writer, fd) = Writer::create(SIZE).unwrap();
    (writer, Reader::open(&fd, SIZE).unwrap())
}

fn ip_fields(last: u8) -> IpFields {
    let dst = Ipv4Addr::new(127, 0, 0, last).into();
    IpFields { src: Ipv4Addr::LOCALHOST.into(), dst, traffic_class: 0x68, hop_limit: 63 }
}

/// Writes a packet of `len` bytes; returns false if the ring is full.
fn put(writer: &mut Writer, ip_fields: &IpFields, len: usize, byte: u8) -> bool {
    writer.slot(ip_fields, len).map(|room| fill(room, byte)).is_some()
}

/// Fills `room` and returns its size.
fn fill(room: TxRoom<'_>, byte: u8) -> usize {
    let len = room.len();
    room.put(&vec![byte; len]).unwrap();
    len
}

/// Reads all runs in the ring; returns the segment size and the bytes of each.
fn read_runs(reader: &Reader) -> Vec<(usize, Vec<u8>)> {
    std::iter::from_fn(|| read_run(reader).map(|(meta, bytes)| (meta.segment, bytes))).collect()
}

/// Reads all packets in the ring.
fn packets(reader: &Reader) -> Vec<Vec<u8>> {
    read_runs(reader).iter().flat_map(|(segment, run)| run.chunks(*segment).map(<[u8]>::to_vec)).collect()
}

fn read_run(reader: &Reader) -> Option<(RxMeta, Vec<u8>)> {
    let mut taken = None;
    reader.next(|record| taken = Some((record.meta, record.bytes.to_vec()))).unwrap();
    taken
}

#[test]
fn reading_any_bytes_terminates() {
    check_ring(&[]);
    for word in [1, u64::MAX, 0x0100_0000_0001_0001, 0x0100_0000_8000_8000_u64.swap_bytes()] {
        check_ring(&word.to_ne_bytes().repeat(8 << 10));
    }
    let line = RecordHeader::parse(u64::from_le_bytes([16, 0, 16, 0, 0, 64, 2, 1])).unwrap().to_word();
    check_ring(&[line, 0, 0, 0, 0, 0, 0, 0].map(u64::to_ne_bytes).as_flattened().repeat(1 << 10));
}

/// Tries every length, with sizes of the first packet and counts of joined packets around the
/// limits.
#[test]
fn header_is_accepted_iff_it_describes_a_run() {
    for len in 0..=u16::MAX {
        for segment in [0, 1, 15, 16, len.saturating_sub(1), len, len.saturating_add(1), u16::MAX] {
            for joined in [0, 1, 2, u8::MAX] {
                let ([l0, l1], [s0, s1]) = (len.to_ne_bytes(), segment.to_ne_bytes());
                // Only the second bit of the flags is defined.
                let flags = joined ^ l0;
                let word = u64::from_ne_bytes([l0, l1, s0, s1, 0x68, 63, flags, joined]);
                let is_run = (1..=MAX_RUN).contains(&len.into()) && (1..=len).contains(&segment);
                let is_valid = is_run && (joined == 1 || joined > 1 && len == segment);
                let header = RecordHeader::parse(word);
                assert_eq!(header.is_some(), is_valid, "{word:#x}");
                let Some(header) = header else { continue };
                let known = u64::from_ne_bytes([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0xff]);
                assert_eq!(header.to_word(), word & known);
                let end = (header.start() + header.len) as u64;
                assert!((end..end + LINE).contains(&header.extent()) && header.extent().is_multiple_of(LINE));
                assert!(header.extent() + LINE <= record_len(header.len), "{word:#x}");
            }
        }
    }
}

#[test]
fn equal_packets_with_short_end_are_one_run() {
    let (mut writer, reader) = ring();
    for (to, len) in [(1, 116), (1, 100), (1, 100), (1, 60), (1, 60), (2, 60)] {
        assert!(put(&mut writer, &ip_fields(to), len, len as u8));
    }
    assert!(read_runs(&reader).len() == 3, "the last run is not published yet");
    writer.publish();
    let (last, _) = read_run(&reader).unwrap();
    assert_eq!((last.len, last.segment, last.first_index), (60, 60, 0));
    assert_eq!((last.src, last.dst), (ip_fields(2).src, ip_fields(2).dst));
    assert_eq!((last.traffic_class, last.hop_limit, last.src_port), (0x68, 63, ROCE_PORT));
    assert!(last.by_ring);
    assert_eq!(read_run(&reader), None);
}

#[test]
fn payloads_are_aligned_after_any_header_size() {
    let (mut writer, reader) = ring();
    for header in [12, 16, 20, 28, 32] {
        for _ in 0..3 {
            put(&mut writer, &ip_fields(1), header + 4096 + icrc::LEN, 1);
        }
        writer.publish();
        let check = |Record { meta, bytes, .. }: Record<'_>| {
            assert_eq!(bytes.len(), 3 * meta.segment);
            let payload = bytes.get(header..bytes.len()).unwrap().addr();
            assert!(payload.is_multiple_of(ALIGN as u64), "{header}");
        };
        assert_eq!(reader.next(check), Ok(true));
    }
}

#[test]
fn run_is_not_overwritten_while_read() {
    let (mut writer, reader) = ring();
    while put(&mut writer, &ip_fields(1), 4112, 7) {}
    writer.publish();
    let check = |record: Record<'_>| {
        assert!(!put(&mut writer, &ip_fields(1), 4112, 8) && record.bytes.to_vec().iter().all(|byte| *byte == 7));
    };
    assert_eq!(reader.next(check), Ok(true));
    assert!(put(&mut writer, &ip_fields(1), 4112, 8));
}

#[test]
fn run_whose_handler_panics_is_not_read_again() {
    let (mut writer, reader) = ring();
    for (to, byte) in [(1, 7), (2, 8)] {
        put(&mut writer, &ip_fields(to), 100, byte);
    }
    writer.publish();
    let result = catch_unwind(AssertUnwindSafe(|| reader.next(|_| panic!("on purpose"))));
    assert!(result.is_err());
    assert_eq!(read_runs(&reader), [(100, vec![8; 100])]);
}

#[test]
fn shorter_packet_is_last_of_its_run() {
    let (mut writer, reader) = ring();
    for len in [116, 100, 100, 60, 60] {
        put(&mut writer, &ip_fields(1), len, len as u8);
    }
    writer.publish();
    let runs: Vec<_> = read_runs(&reader).into_iter().map(|(segment, bytes)| (segment, bytes.len())).collect();
    assert_eq!(runs, [(116, 216), (100, 160), (60, 60)]);
}

#[test]
fn retracted_packet_leaves_no_trace() {
    let (mut writer, reader) = ring();
    put(&mut writer, &ip_fields(1), 100, 1);
    put(&mut writer, &ip_fields(1), 60, 2);
    writer.retract();
    put(&mut writer, &ip_fields(1), 100, 3);
    writer.publish();
    put(&mut writer, &ip_fields(1), 50, 4);
    writer.retract();
    writer.publish();
    assert_eq!(read_runs(&reader), [(100, [[1; 100], [3; 100]].concat())]);
}

/// The writer builds small records outside the ring, and copies them into it when they grow. The
/// test retracts some packets.
#[test]
fn packets_of_all_sizes_roundtrip() {
    let (mut writer, reader) = ring();
    let mut random = 1u32;
    let mut roll = |below: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 16) % below
    };
    let (mut sent, mut got) = (Vec::new(), Vec::new());
    for byte in (0..=255).cycle().take(100_000) {
        let most = if roll(4) == 0 { 4200 } else { 120 };
        let (len, to) = (16 + roll(most) as usize, 1 + roll(20).saturating_sub(17) as u8);
        let fits = put(&mut writer, &ip_fields(to), len, byte);
        match roll(6) {
            0 if fits => writer.retract(),
            _ if fits => sent.push(vec![byte; len]),
            _ => {}
        }
        if roll(3) == 0 {
            writer.publish();
        }
        if roll(300) == 0 {
            got.extend(packets(&reader));
        }
    }
    writer.publish();
    got.extend(packets(&reader));
    assert!(sent == got && sent.len() > 20_000, "{} sent, {} received", sent.len(), got.len());
}

#[test]
fn bytes_survive_wraparound() {
    let (mut writer, reader) = ring();
    let (mut sent, mut got) = (0u32, 0u32);
    while got < 3000 {
        while put(&mut writer, &ip_fields(1), 100 + (sent as usize * 37) % 4000, sent as u8) {
            sent += 1;
        }
        writer.publish();
        for (segment, bytes) in read_runs(&reader) {
            for packet in bytes.chunks(segment) {
                assert_eq!(packet.len(), 100 + (got as usize * 37) % 4000);
                assert!(packet.iter().all(|byte| *byte == got as u8));
                got += 1;
            }
        }
    }
    assert_eq!(sent, got);
}

#[test]
fn full_ring_refuses_until_reader_wakes_writer() {
    let (mut writer, reader) = ring();
    while put(&mut writer, &ip_fields(1), 4112, 7) {}
    writer.publish();
    assert!(!writer.has_room(4112) && !writer.is_half_free_or_waits());
    read_run(&reader).unwrap();
    assert!(!reader.must_wake_writer(), "not before half of it is free");
    let left = read_runs(&reader).len();
    assert!(left > 1 && reader.must_wake_writer() && !reader.must_wake_writer(), "once");
    assert!(writer.is_half_free() && put(&mut writer, &ip_fields(1), 4112, 7));
}

/// The reader checks only once for each quarter of the ring. The rounds of the test fill the ring
/// at different positions.
#[test]
fn waiting_writer_is_woken_once_before_ring_is_empty() {
    let (mut writer, reader) = ring();
    for _ in 0..20 {
        while put(&mut writer, &ip_fields(1), 4112, 7) {
            writer.publish();
        }
        assert!(!writer.is_half_free_or_waits());
        let mut wake_ups = Vec::new();
        while read_run(&reader).is_some() {
            if reader.must_wake_writer() {
                wake_ups.push((writer.is_half_free(), reader.is_empty()));
            }
        }
        assert_eq!(wake_ups, [(true, false)]);
        // The next round begins at another offset of the ring.
        (0..7).for_each(|_| assert!(put(&mut writer, &ip_fields(1), 4112, 7)));
        writer.publish();
        read_runs(&reader);
    }
}

#[test]
fn sleeping_reader_is_woken_once_and_misses_no_record() {
    let (mut writer, reader) = ring();
    assert!(!writer.must_wake());
    assert!(!reader.prepare_sleep());
    put(&mut writer, &ip_fields(1), 20, 0);
    writer.publish();
    assert!(writer.must_wake() && !writer.must_wake());
    assert!(reader.prepare_sleep(), "there is a packet");
    reader.awake();
    assert!(!writer.must_wake());
}

/// Returns a header whose traffic class and hop limit are a checksum of its other fields.
fn checksummed_header(seed: u32) -> RecordHeader {
    let (len, joined, keeps_addresses) = (1 + seed as usize % MAX_RUN, 1 + (seed >> 16) as u8 % 3, seed & 1 << 24 != 0);
    let segment = if joined > 1 { len } else { 1 + (seed >> 4) as usize % len };
    let [traffic_class, hop_limit] = checksum(len, segment, joined, keeps_addresses);
    RecordHeader { len, segment, joined, traffic_class, hop_limit, keeps_addresses }
}

fn checksum(len: usize, segment: usize, joined: u8, keeps_addresses: bool) -> [u8; 2] {
    ((len as u16).wrapping_mul(31)
        ^ (segment as u16).wrapping_mul(7)
        ^ u16::from(joined) << 1
        ^ u16::from(keeps_addresses))
    .to_ne_bytes()
}

/// Ends the writing thread, even if the reading thread panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn changing_header_is_read_once() {
    let ((writer, reader), stopped) = (ring(), AtomicBool::new(false));
    let headers: Vec<_> =
        (0..1000_u32).map(|seed| checksummed_header(seed.wrapping_mul(2_654_435_769)).to_word()).collect();
    for (line, header) in (0..writer.memory.size() / LINE).zip(headers.iter().cycle()) {
        writer.memory.header(line * LINE).store(*header, Ordering::Relaxed);
    }
    std::thread::scope(|scope| {
        let _stop = Stop(&stopped);
        // Writes one header after another at the reader's position, and after every ten headers
        // other bytes behind them.
        scope.spawn(|| {
            for (byte, headers) in (0..=u8::MAX).cycle().zip(headers.chunks(10).cycle()) {
                let at = reader.read_so_far();
                headers.iter().for_each(|header| writer.memory.header(at).store(*header, Ordering::Relaxed));
                let behind = writer.memory.room(at + HEADER_LEN as u64, LINE as usize - HEADER_LEN).unwrap();
                behind.put(&[byte; LINE as usize - HEADER_LEN]).unwrap();
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mut addresses = None;
        for _ in 0..200_000 {
            let (before, mut seen) = (reader.read_so_far(), None);
            let take = |Record { meta, bytes, joined, .. }: Record<'_>| seen = Some((meta, bytes.len(), joined));
            assert_eq!(reader.next(take), Ok(true));
            let (meta, shown, joined) = seen.unwrap();
            let RxMeta { len, segment, src, dst, traffic_class, hop_limit, .. } = meta;
            let fits =
                |keeps_addresses: &bool| [traffic_class, hop_limit] == checksum(len, segment, joined, *keeps_addresses);
            let keeps_addresses = [false, true].into_iter().find(fits).expect("parts of one header");
            let header = RecordHeader { len, segment, joined, traffic_class, hop_limit, keeps_addresses };
            assert_eq!((shown, reader.read_so_far() - before), (len, header.extent()));
            let are_same_addresses = addresses.replace((src, dst)).is_none_or(|addresses| addresses == (src, dst));
            assert!(are_same_addresses || !header.keeps_addresses, "the addresses were read again");
        }
    });
}

/// Returns the results of 10,000 operations of `writer` with packets of all sizes, in a ring that
/// is read after each of them.
fn results_of_writer(writer: &mut Writer) -> Vec<(Option<usize>, u64, u64)> {
    let (mut results, mut seed) = (vec![], 1u32);
    for _ in 0..10_000 {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let (ip_fields, len) = (ip_fields(1 + (seed >> 30) as u8), 16 + (seed >> 18) as usize % 4100);
        let room = match seed >> 16 & 3 {
            0 => writer.slot(&ip_fields, len % 100 + 16).map(|room| fill(room, 1)),
            1 => writer.slot(&ip_fields, len).map(|room| fill(room, 2)),
            2 => writer.extend(1024, 3).map(|room| fill(room, 3)),
            _ => None,
        };
        match seed >> 13 & 3 {
            0 => writer.publish(),
            1 if room.is_some() => writer.retract(),
            _ => {}
        }
        writer.memory.word(Word::Head).store(writer.tail, Ordering::Release);
        results.push((room, writer.tail, writer.cleared));
    }
    results
}

#[test]
fn writing_reader_does_not_affect_writer() {
    let (mut alone, _) = Writer::create(SIZE).unwrap();
    let ((mut writer, reader), stopped) = (ring(), AtomicBool::new(false));
    let disturbed = std::thread::scope(|scope| {
        let _stop = Stop(&stopped);
        scope.spawn(|| {
            for byte in (0..=u8::MAX).cycle().take_while(|_| !stopped.load(Ordering::Relaxed)) {
                let all = vec![byte; reader.size() as usize];
                reader.memory.room(0, all.len()).unwrap().put(&all).unwrap();
            }
        });
        results_of_writer(&mut writer)
    });
    assert!(disturbed == results_of_writer(&mut alone));
}

#[test]
fn invalid_header_is_detected() {
    let good =
        RecordHeader { len: 200, segment: 100, joined: 1, traffic_class: 0, hop_limit: 1, keeps_addresses: false };
    assert_eq!(RecordHeader::parse(good.to_word()), Some(good));
    for (len, segment) in [(0, 1), (1, 0), (1, 2), (MAX_RUN + 1, 1), (0xffff, 1), (200, 201)] {
        let (writer, reader) = ring();
        writer.memory.header(0).store(RecordHeader { len, segment, ..good }.to_word(), Ordering::Release);
        assert_eq!(reader.next(|_| {}), Err(Broken), "{len} bytes in segments of {segment}");
    }
}

/// Records of few small packets are built outside the ring, the others in it.
#[test]
fn many_small_packets_share_a_record() {
    let (mut writer, reader) = ring();
    for len in [20, 96, 100, 256, 260] {
        for count in 1..super::STAGE_LEN / 48 {
            let sent: Vec<_> = (0..count).map(|at| vec![at as u8; len]).collect();
            assert!(sent.iter().all(|packet| put(&mut writer, &ip_fields(1), len, packet[0])));
            assert!(put(&mut writer, &ip_fields(1), len, 0xee));
            writer.retract();
            writer.publish();
            let [(segment, run)] = &read_runs(&reader)[..] else { panic!("{count} packets of {len} in other records") };
            assert!(*segment == len && *run == sent.concat(), "{count} packets of {len}");
        }
    }
}

#[test]
fn only_newest_record_is_last() {
    let (mut writer, reader) = ring();
    let mut seen = Vec::new();
    for count in [1, 3] {
        for _ in 0..count {
            assert!(put(&mut writer, &ip_fields(1), 40, 1));
            writer.publish();
        }
        while reader.next(|record| seen.push(record.is_last)).unwrap() {}
    }
    assert_eq!(seen, [true, false, false, true]);
}

#[test]
fn packets_share_header_in_record_of_their_own() {
    let (mut writer, reader) = ring();
    assert!(writer.extend(1024, 1).is_none(), "there is no packet");
    assert!(put(&mut writer, &ip_fields(1), 100, 1) && writer.extend(1024, 1).is_none(), "too small");
    writer.publish();
    assert!(put(&mut writer, &ip_fields(1), 1056, 2) && put(&mut writer, &ip_fields(1), 1040, 3));
    assert!(writer.extend(1024, 1).is_none(), "not alone");
    writer.publish();
    read_runs(&reader);
    assert!(put(&mut writer, &ip_fields(1), 1040, 4) && writer.extend(1000, 1).is_none(), "not aligned");
    for byte in 5..8 {
        fill(writer.extend(1024, 1).unwrap(), byte);
    }
    writer.retract();
    assert!(put(&mut writer, &ip_fields(1), 1040, 8), "begins a record");
    writer.publish();
    let mut seen = Vec::new();
    while reader.next(|record| seen.push((record.joined, record.meta.segment, record.bytes.to_vec()))).unwrap() {}
    let [(joined, segment, shared), (1, 1040, single)] = &seen[..] else { panic!("{} records", seen.len()) };
    assert_eq!((*joined, *segment, shared.len()), (3, 1040 + 2048, 1040 + 2048));
    let payload = [vec![4; 1036], vec![5; 1024], vec![6; 1024]].concat();
    assert!(shared.starts_with(&payload) && single.iter().all(|byte| *byte == 8));
}

#[test]
fn extension_takes_as_many_packets_as_fit() {
    let (mut writer, reader) = ring();
    assert!(put(&mut writer, &ip_fields(1), 4112, 1));
    assert_eq!(writer.extend(4096, 3).map(|room| fill(room, 2)), Some(3 * 4096));
    let most = (MAX_RUN - 4112) / 4096;
    assert_eq!(writer.extend(4096, 100).map(|room| fill(room, 3)), Some((most - 3) * 4096));
    assert!(writer.extend(4096, 1).is_none(), "the record is full");
    writer.retract();
    writer.publish();
    let seen = |record: Record<'_>| {
        assert_eq!((record.joined, record.bytes.len()), (4, 4108 + 3 * 4096 + icrc::LEN));
        assert!(record.bytes.to_vec().starts_with(&[vec![1; 4108], vec![2; 3 * 4096]].concat()));
    };
    assert_eq!(reader.next(seen), Ok(true));
    // A nearly full ring has room for some of the packets.
    while writer.free(SIZE as u64) > 12_800 && put(&mut writer, &ip_fields(1), 4112, 1) {
        writer.publish();
    }
    assert!(put(&mut writer, &ip_fields(1), 4112, 1));
    let room = writer.extend(1024, 100).map(|room| room.len()).unwrap();
    assert!((1024..8 * 1024).contains(&room) && writer.extend(1024, 1).is_none(), "{room} bytes");
}

#[test]
fn record_takes_packets_until_full() {
    let (mut writer, reader) = ring();
    assert!(put(&mut writer, &ip_fields(1), 272, 1));
    let most = std::iter::from_fn(|| writer.extend(256, 1).map(drop)).count();
    assert_eq!(most, (MAX_RUN - 272) / 256);
    while put(&mut writer, &ip_fields(1), 4112, 7) {
        while writer.extend(4096, 1).is_some() {}
    }
    writer.publish();
    let mut bytes = 0;
    while reader.next(|record| bytes += record.bytes.len()).unwrap() {}
    assert!(bytes > SIZE - MAX_RUN && writer.is_half_free());
}

#[test]
fn addresses_are_written_when_they_change() {
    let (mut writer, reader) = ring();
    let mut ends = Vec::new();
    for to in [1, 1, 2, 2, 1] {
        assert!(put(&mut writer, &ip_fields(to), 40, to));
        writer.publish();
        ends.push(writer.tail);
    }
    assert_eq!(ends, [128, 192, 320, 384, 512], "a small packet is one line");
    let seen: Vec<_> = std::iter::from_fn(|| read_run(&reader)).map(|(meta, bytes)| (meta.dst, bytes[0])).collect();
    assert_eq!(seen, [1, 1, 2, 2, 1].map(|to| (ip_fields(to).dst, to)));
}

#[test]
fn broken_reader_only_blocks_writer() {
    for head in [u64::MAX, SIZE as u64, 1 << 40] {
        let (mut writer, reader) = ring();
        while put(&mut writer, &ip_fields(1), 4112, 7) {}
        reader.memory.word(Word::Head).store(head, Ordering::Release);
        let before = writer.tail;
        while writer.tail < before + 2 * SIZE as u64 && put(&mut writer, &ip_fields(1), 4112, 7) {}
        // The record that begins at `before` is not published yet.
        writer.publish();
        assert!(writer.tail <= before + SIZE as u64 + record_len(MAX_RUN), "head {head}");
    }
}
