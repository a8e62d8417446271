//! Lists of numbers as rules write them: `3`, `3,5`, `10..20`, `10..`.

use roxe_wire::Psn;

/// Numbers, as ranges that include both ends. At most [`Spans::MAX`] ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spans(Vec<(u64, u64)>);

impl Spans {
    /// Ranges in one list.
    pub const MAX: usize = 64;

    /// These ranges, both ends included. `None` if there are none or too many, or one ends before
    /// it starts.
    pub fn new(ranges: Vec<(u64, u64)>) -> Option<Self> {
        let ok = (1..=Self::MAX).contains(&ranges.len()) && ranges.iter().all(|(from, to)| from <= to);
        ok.then_some(Self(ranges))
    }

    /// The ranges, both ends included.
    pub fn ranges(&self) -> &[(u64, u64)] {
        &self.0
    }

    /// Whether `number` is in the list.
    pub fn contains(&self, number: u64) -> bool {
        self.0.iter().any(|(from, to)| (*from..=*to).contains(&number))
    }
}

/// Packet sequence numbers, as ranges that include both ends and may wrap around. At most
/// [`Spans::MAX`] ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PsnSpans(Vec<(Psn, Psn)>);

impl PsnSpans {
    /// These ranges, both ends included; one that ends before it starts wraps around. `None` if
    /// there are none or too many.
    pub fn new(ranges: Vec<(Psn, Psn)>) -> Option<Self> {
        (1..=Spans::MAX).contains(&ranges.len()).then_some(Self(ranges))
    }

    /// The ranges, both ends included.
    pub fn ranges(&self) -> &[(Psn, Psn)] {
        &self.0
    }

    /// Whether `psn` is in the list.
    pub fn contains(&self, psn: Psn) -> bool {
        let within = |(from, to): &(Psn, Psn)| psn.sub(from.get()).get() <= to.sub(from.get()).get();
        self.0.iter().any(within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_range_count() {
        let spans = Spans::new(vec![(3, 3), (10, 20), (100, u64::MAX)]).expect("legal");
        let inside: Vec<u64> = (0..=101).filter(|n| spans.contains(*n)).collect();
        assert_eq!(inside, [3].into_iter().chain(10..=20).chain(100..=101).collect::<Vec<_>>());
        assert!(spans.contains(u64::MAX));
    }

    #[test]
    fn lists_are_bounded_and_ranges_run_upwards() {
        assert_eq!(Spans::new(vec![]), None);
        assert_eq!(Spans::new(vec![(2, 1)]), None);
        assert!(Spans::new(vec![(1, 1); Spans::MAX]).is_some());
        assert_eq!(Spans::new(vec![(1, 1); Spans::MAX + 1]), None);
        assert_eq!(PsnSpans::new(vec![]), None);
        assert_eq!(PsnSpans::new(vec![(Psn::new(1), Psn::new(1)); Spans::MAX + 1]), None);
    }

    #[test]
    fn ranges_of_psns_wrap_around() {
        let psn = Psn::new;
        let spans = PsnSpans::new(vec![(psn(0xff_fffe), psn(1)), (psn(7), psn(7))]).expect("legal");
        for (number, inside) in
            [(0xff_fffd, false), (0xff_fffe, true), (0xff_ffff, true), (0, true), (1, true), (2, false), (7, true)]
        {
            assert_eq!(spans.contains(psn(number)), inside, "{number:#x}");
        }
    }
}
