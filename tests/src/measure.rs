//! Shared code of benchmarks: series of figures, detection of disturbances, pinning of processes.

pub mod load;
pub mod pin;

/// Figures of one measurement, one per round.
#[derive(Clone, Debug, Default)]
pub struct Series(Vec<f64>);

impl Series {
    /// Creates a series without figures.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a figure.
    pub fn push(&mut self, figure: f64) {
        self.0.push(figure);
    }

    /// Returns the number of figures.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there are no figures.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the figures in the order of measurement.
    pub fn figures(&self) -> &[f64] {
        &self.0
    }

    /// Returns the median; `None` without figures. Of an even number of figures it is the mean of
    /// the middle two.
    pub fn median(&self) -> Option<f64> {
        let sorted = self.sorted();
        let (low, high) = (sorted.get(sorted.len().checked_sub(1)? / 2)?, sorted.get(sorted.len() / 2)?);
        Some(f64::midpoint(*low, *high))
    }

    /// Returns quantile `part` (0 to 1); `None` without figures.
    pub fn quantile(&self, part: f64) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a count of figures")]
        let at = part * self.0.len() as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index of a figure")]
        self.sorted().get((at.ceil() as usize).clamp(1, self.0.len().max(1)) - 1).copied()
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }

    /// Returns the mean; `None` without figures.
    pub fn mean(&self) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a count of figures")]
        let len = self.0.len() as f64;
        (!self.is_empty()).then(|| self.0.iter().sum::<f64>() / len)
    }

    /// Returns the smallest and the largest figure; `None` without figures.
    pub fn range(&self) -> Option<(f64, f64)> {
        let least = self.0.iter().copied().min_by(f64::total_cmp)?;
        Some((least, self.0.iter().copied().max_by(f64::total_cmp)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_mean_and_range_are_correct() {
        let series = |figures: &[f64]| Series(figures.to_vec());
        assert_eq!(series(&[]).median(), None);
        assert_eq!(series(&[3.0, 1.0, 9.0]).median(), Some(3.0));
        assert_eq!(series(&[4.0, 1.0, 9.0, 2.0]).median(), Some(3.0));
        assert_eq!(series(&[4.0, 1.0, 9.0]).range(), Some((1.0, 9.0)));
        assert_eq!((series(&[4.0, 1.0, 10.0]).mean(), series(&[]).mean()), (Some(5.0), None));
    }

    #[test]
    fn quantile_is_least_figure_that_covers_its_part() {
        let hundred = Series((1..=100).rev().map(f64::from).collect());
        let parts = [0.0, 0.5, 0.99, 0.999, 1.0];
        assert_eq!(parts.map(|part| hundred.quantile(part)), [1.0, 50.0, 99.0, 100.0, 100.0].map(Some));
        assert_eq!(Series::new().quantile(0.99), None);
    }
}
