//! Two sides in turn, so that a machine which is slower for a while is slower for both, and what is said of them.

use std::time::Duration;

/// So often each side has its turn.
pub(crate) const ROUNDS: usize = 7;

/// What was timed: from the acknowledgement of the first batch to the end. Connecting, and making topics and streams, is before.
pub(crate) struct Lap {
    pub(crate) records: usize,
    pub(crate) took: Duration,
    /// How much of it was in the sink, where there is one.
    pub(crate) in_sink: Option<Duration>,
}

/// One side: what it is called, and its turns.
pub(crate) struct Side {
    name: String,
    speeds: Vec<f64>,
    shares: Vec<f64>,
}

impl Side {
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), speeds: Vec::new(), shares: Vec::new() }
    }

    pub(crate) fn add(&mut self, lap: &Lap) {
        self.speeds.push(lap.records as f64 / lap.took.as_secs_f64());
        self.shares.extend(lap.in_sink.map(|in_sink| 100.0 * in_sink.as_secs_f64() / lap.took.as_secs_f64()));
    }

    /// The median of its turns, in records per second.
    fn speed(&self) -> f64 {
        median(self.speeds.clone())
    }

    fn line(&self, bytes_per_record: f64) -> String {
        let Self { name, speeds, shares } = self;
        let (speed, least) = (self.speed(), speeds.iter().copied().fold(f64::INFINITY, f64::min));
        let (most, mb) = (speeds.iter().copied().fold(0.0, f64::max), speed * bytes_per_record / 1e6);
        let line = format!("  {name}: {speed:.0} records/s, {mb:.0} MB/s of records ({least:.0} to {most:.0})");
        if shares.is_empty() {
            return line;
        }
        let share = median(shares.clone());
        format!("{line}; {share:.0} % of the time in the sink, the rest in the log and the cursor")
    }
}

/// Prints both sides and how the first one compares with the second.
pub(crate) fn compare(title: &str, ours: &Side, other: &Side, bytes_per_record: f64, target_percent: f64) {
    let percent = 100.0 * ours.speed() / other.speed();
    let verdict = if percent >= target_percent { "met" } else { "MISSED" };
    println!("{title}\n{}\n{}", ours.line(bytes_per_record), other.line(bytes_per_record));
    println!("  {percent:.0} % (target: at least {target_percent:.0} %: {verdict})");
}

/// The middle one.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
