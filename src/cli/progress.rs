//! Progress of the LISTs under way: a line at the bottom of a terminal, log lines elsewhere.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::{
    telemetry,
    vitals::{ListUnderWay, Vitals, progress},
};

/// Often enough to look alive.
const REDRAW: Duration = Duration::from_millis(200);
/// Seldom enough not to fill the logs.
const LOG: Duration = Duration::from_secs(10);
/// What every terminal has, less the column that would wrap.
const WIDTH: usize = 79;

/// Shows progress on standard error until stopped: a status line if it is a terminal, else log lines.
pub async fn show(vitals: Vitals, stop: CancellationToken) {
    if telemetry::has_status_line() {
        draw(vitals, stop).await;
    } else {
        log(vitals, stop).await;
    }
}

/// Logs progress until stopped: for where a status line would be in the way, such as under records on the same terminal.
pub async fn log(vitals: Vitals, stop: CancellationToken) {
    every(LOG, &stop, || {
        for ListUnderWay { stream, listed, about } in vitals.lists_under_way() {
            info!(%stream, listed, about, "listing");
        }
    })
    .await;
}

async fn draw(vitals: Vitals, stop: CancellationToken) {
    // Also when the task is dropped.
    let _cleared = Cleared;
    every(REDRAW, &stop, || telemetry::set_status(&line(&vitals.lists_under_way()))).await;
}

struct Cleared;

impl Drop for Cleared {
    fn drop(&mut self) {
        telemetry::set_status("");
    }
}

async fn every(period: Duration, stop: &CancellationToken, mut act: impl FnMut()) {
    let mut ticks = interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        act();
    }
}

/// `core/pods: listed 12,500 of about 40,000`; empty if nothing is listed.
fn line(lists: &[ListUnderWay]) -> String {
    match lists {
        [] => String::new(),
        [ListUnderWay { stream, listed, about }] => {
            let progress = progress(*listed, *about);
            let room = WIDTH - ": listed ".len() - progress.chars().count();
            format!("{}: listed {progress}", end_of(stream, room))
        }
        several => {
            let listed = several.iter().map(|list| list.listed).sum();
            // Together they are about as many only if each says how many it is.
            let about = several.iter().map(|list| list.about.map(|about| about.max(list.listed))).sum();
            format!("{} streams: listed {}", several.len(), progress(listed, about))
        }
    }
}

/// The end of a stream's name tells more than its beginning: `…ple.com/widgets@default`.
fn end_of(name: &str, room: usize) -> String {
    let length = name.chars().count();
    if length <= room {
        return name.to_owned();
    }
    let end: String = name.chars().skip(length + 1 - room).collect();
    format!("…{end}")
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        sync::{Arc, Mutex},
    };

    use super::*;
    use crate::vitals::Asked;

    fn list(stream: &str, listed: u64, about: Option<u64>) -> ListUnderWay {
        ListUnderWay { stream: stream.into(), listed, about }
    }

    #[test]
    fn one_list_is_told_by_name() {
        assert_eq!(line(&[list("core/pods", 12_500, Some(40_000))]), "core/pods: listed 12,500 of about 40,000");
        assert_eq!(line(&[list("core/pods", 0, None)]), "core/pods: listed 0");
        assert_eq!(line(&[list("core/pods", 501, Some(500))]), "core/pods: listed 501");
    }

    #[test]
    fn several_are_told_as_their_sum() {
        let both = [list("core/pods", 12_000, Some(39_000)), list("core/nodes", 500, Some(1_000))];
        assert_eq!(line(&both), "2 streams: listed 12,500 of about 40,000");
        let one_unknown = [list("core/pods", 12_000, Some(39_000)), list("core/nodes", 500, None)];
        assert_eq!(line(&one_unknown), "2 streams: listed 12,500");
    }

    #[test]
    fn nothing_is_told_of_nothing() {
        assert_eq!(line(&[]), "");
    }

    #[test]
    fn a_long_name_is_cut_so_that_the_line_does_not_wrap() {
        let long = format!("{}.example.com/widgets@default", "a".repeat(200));
        let line = line(&[list(&long, 12_500, Some(40_000))]);
        assert_eq!(line.chars().count(), WIDTH);
        assert!(line.starts_with("…a") && line.ends_with("/widgets@default: listed 12,500 of about 40,000"), "{line}");
    }

    #[derive(Clone, Default)]
    struct Told(Arc<Mutex<Vec<u8>>>);

    impl Write for Told {
        fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(line)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_terminal_each_list_is_logged_every_10_s() {
        let told = Told::default();
        let writer = told.clone();
        let subscriber = tracing_subscriber::fmt().without_time().with_target(false).with_ansi(false);
        let _logging = tracing::subscriber::set_default(subscriber.with_writer(move || writer.clone()).finish());
        let vitals = Vitals::new();
        let (pods, nodes) = (vitals.stream("core/pods", Asked::Named), vitals.stream("core/nodes", Asked::Named));
        pods.list_progress(12_500, Some(40_000));
        nodes.list_progress(3, None);
        let stop = CancellationToken::new();
        let logging = tokio::spawn(log(vitals, stop.clone()));
        tokio::time::sleep(Duration::from_secs(15)).await;
        nodes.list_finished(3, Duration::from_secs(15));
        tokio::time::sleep(Duration::from_secs(10)).await;
        stop.cancel();
        logging.await.unwrap();
        let told = String::from_utf8(told.0.lock().unwrap().clone()).unwrap();
        let pods = " INFO listing stream=core/pods listed=12500 about=40000";
        assert_eq!(told.lines().collect::<Vec<_>>(), [" INFO listing stream=core/nodes listed=3", pods, pods]);
    }
}
