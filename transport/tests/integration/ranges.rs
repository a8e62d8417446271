//! Ranges under a remote key, to the byte.

use super::*;

// clause: CHECK-KEY
#[test]
fn write_beyond_its_region_writes_nothing() {
    // The WRITE is one byte too long; the last of one, two or three packets exceeds the region.
    for len in [256, 257, 512, 513] {
        let mut p = Pair::new(Setup::default());
        let (src, dst) = (filled(&mut p, A, len), blank(&mut p, B, len - 1));
        post(&mut p, A, 1, write_to(dst), &[src.all()]);
        p.run();
        assert_eq!(sends(&mut p, A), [(1, WcStatus::RemAccessErr)]);
        assert_eq!(bytes(&p, B, dst), vec![0; dst.len as usize], "{len} bytes");
    }
}
