//! The instruments: OpenTelemetry's, read as Prometheus text.
//!
//! Counters and histograms are written where something happens. Gauges are read from the board when someone asks, so that
//! the series of what is no longer there are gone. The only labels are `stream`, `sink` and words of ours.

use std::sync::Arc;

use opentelemetry::{
    KeyValue,
    metrics::{AsyncInstrument, Counter, Histogram, Meter, MeterProvider as _},
};
use opentelemetry_sdk::{
    Resource,
    metrics::{Instrument, SdkMeterProvider, Stream},
};
use prometheus::TextEncoder;
use tracing::error;

use super::{Board, lock};

/// Series per instrument. A cluster with a thousand CRDs has a thousand streams, with up to eight pairs of op and origin
/// each; beyond the limit, what happens is counted without its labels.
const MOST_SERIES: usize = 10_000;
/// In seconds: a LIST takes from an instant to as long as it may.
const LIST_DURATIONS: [f64; 10] = [0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];
/// In seconds: from the receiver next door to one that was down over the weekend.
const LAGS: [f64; 12] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0, 3_600.0, 86_400.0];

/// What is written when it happens.
pub(super) struct Instruments {
    pub(super) lists: Counter<u64>,
    pub(super) list_duration: Histogram<f64>,
    pub(super) listed_objects: Counter<u64>,
    pub(super) events: Counter<u64>,
    pub(super) changes: Counter<u64>,
    pub(super) ignored_events: Counter<u64>,
    pub(super) bookmarks: Counter<u64>,
    pub(super) watch_opened: Counter<u64>,
    pub(super) watch_ended: Counter<u64>,
    pub(super) gaps: Counter<u64>,
    pub(super) stalls: Counter<u64>,
    pub(super) stream_failures: Counter<u64>,
    pub(super) verifications: Counter<u64>,
    pub(super) verification_suspects: Counter<u64>,
    pub(super) undecodable: Counter<u64>,
    pub(super) sink_records: Counter<u64>,
    pub(super) sink_bytes: Counter<u64>,
    pub(super) sink_lag: Histogram<f64>,
    pub(super) sink_failures: Counter<u64>,
    pub(super) sink_batches: Counter<u64>,
    pub(super) sink_dead_letters: Counter<u64>,
}

impl Instruments {
    fn new(meter: &Meter) -> Self {
        let counter = |name: &'static str, what: &'static str| meter.u64_counter(name).with_description(what).build();
        let seconds = |name: &'static str, what: &'static str, bounds: &[f64]| {
            meter.f64_histogram(name).with_unit("s").with_description(what).with_boundaries(bounds.to_vec()).build()
        };
        Self {
            lists: counter("kubetide.lists", "LISTs begun, by kind: streaming or paged"),
            list_duration: seconds("kubetide.list.duration", "How long complete LISTs took", &LIST_DURATIONS),
            listed_objects: counter("kubetide.listed_objects", "Objects of complete LISTs"),
            events: counter("kubetide.events", "Watch events read"),
            changes: counter("kubetide.changes", "Changes logged, by op and origin"),
            ignored_events: counter("kubetide.ignored_events", "Events with an equal or older version"),
            bookmarks: counter("kubetide.bookmarks", "Bookmarks read"),
            watch_opened: counter("kubetide.watch.opened", "Watches opened"),
            watch_ended: counter("kubetide.watch.ended", "Watches that ended, by reason"),
            gaps: counter("kubetide.gaps", "Breaks in the history of a stream, by reason"),
            stalls: counter("kubetide.stalls", "Watches that brought nothing any more, and were rebuilt"),
            stream_failures: counter("kubetide.stream.failures", "Attempts to list or watch that failed"),
            verifications: counter("kubetide.verifications", "Verifications, by result: clean or diverged"),
            verification_suspects: counter(
                "kubetide.verification.suspects",
                "Objects that verifications looked at twice",
            ),
            undecodable: counter("kubetide.undecodable", "Objects that could not be read"),
            sink_records: counter("kubetide.sink.records", "Records that a sink has acknowledged"),
            sink_bytes: meter
                .u64_counter("kubetide.sink.delivered")
                .with_unit("By")
                .with_description("Bytes of records that a sink has acknowledged")
                .build(),
            sink_lag: seconds("kubetide.sink.lag", "From observing a change to a sink's acknowledgement", &LAGS),
            sink_failures: counter(
                "kubetide.sink.failures",
                "Batches that a sink did not take, by what is done about it",
            ),
            sink_batches: counter("kubetide.sink.batches", "Batches cut, by what cut them"),
            sink_dead_letters: counter("kubetide.sink.dead_letters", "Records that a sink refused for good"),
        }
    }
}

/// What is read from the board when someone asks.
fn observe(meter: &Meter, board: &Arc<Board>) {
    let gauge =
        |name: &'static str, unit: &'static str, what: &'static str, read: fn(&Board, &dyn AsyncInstrument<f64>)| {
            let board = Arc::clone(board);
            let gauge = meter.f64_observable_gauge(name).with_unit(unit).with_description(what);
            gauge.with_callback(move |seen| read(&board, seen)).build();
        };
    gauge("kubetide.stream.state", "", "1 for the state that a stream is in", |board, seen| {
        for (stream, condition) in &lock(&board.whole).streams {
            seen.observe(1.0, &[stream_label(stream), KeyValue::new("state", lock(condition).state())]);
        }
    });
    gauge("kubetide.stream.last_event_timestamp", "s", "When a stream last had an event, since 1970", |board, seen| {
        for (stream, condition) in &lock(&board.whole).streams {
            if let Some(at) = lock(condition).last_event() {
                seen.observe(at, &[stream_label(stream)]);
            }
        }
    });
    gauge("kubetide.list.objects", "", "Objects read by the LIST under way", |board, seen| {
        for list in board.lists_under_way() {
            seen.observe(list.listed as f64, &[stream_label(&list.stream)]);
        }
    });
    gauge("kubetide.list.expected_objects", "", "About how many the LIST under way will read", |board, seen| {
        for list in board.lists_under_way() {
            if let Some(about) = list.about {
                seen.observe(about as f64, &[stream_label(&list.stream)]);
            }
        }
    });
    gauge("kubetide.budget", "By", "Bytes read but not logged yet, of all streams", |board, seen| {
        seen.observe(board.budget() as f64, &[]);
    });
    gauge("kubetide.log.size", "By", "Bytes of the change log", |board, seen| {
        if let Some(size) = lock(&board.whole).log {
            seen.observe(size.bytes as f64, &[]);
        }
    });
    gauge("kubetide.log.hours", "", "For how long log.max_bytes lasts at the present rate", |board, seen| {
        if let Some(hours) = lock(&board.whole).log.and_then(|size| size.hours) {
            seen.observe(hours, &[]);
        }
    });
    gauge("kubetide.log.blocked", "", "1 while appending to the change log is blocked", |board, seen| {
        seen.observe(f64::from(u8::from(lock(&board.whole).blocked.is_some())), &[]);
    });
    gauge("kubetide.sink.dead_letters.size", "By", "Bytes of dead letters that wait in files", |board, seen| {
        for (sink, condition) in &lock(&board.whole).sinks {
            if let Some(bytes) = lock(condition).letters {
                seen.observe(bytes as f64, &[KeyValue::new("sink", Arc::clone(sink))]);
            }
        }
    });
    gauge("kubetide.build_info", "", "1, with the version as label", |_, seen| {
        seen.observe(1.0, &[KeyValue::new("version", env!("CARGO_PKG_VERSION"))]);
    });
}

fn stream_label(stream: &Arc<str>) -> KeyValue {
    KeyValue::new("stream", Arc::clone(stream))
}

/// The way from the instruments to a page of text.
pub(super) struct Exporter {
    registry: prometheus::Registry,
    // The instruments end with it.
    _provider: SdkMeterProvider,
}

impl Exporter {
    #[allow(clippy::expect_used, reason = "nothing else is in the registry that the exporter could collide with")]
    pub(super) fn new(board: &Arc<Board>) -> (Self, Instruments) {
        let registry = prometheus::Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .without_target_info()
            .build()
            .expect("a new registry takes a collector");
        let provider = SdkMeterProvider::builder()
            .with_resource(Resource::builder_empty().build())
            .with_view(|_: &Instrument| Stream::builder().with_cardinality_limit(MOST_SERIES).build().ok())
            .with_reader(exporter)
            .build();
        let meter = provider.meter("kubetide");
        observe(&meter, board);
        (Self { registry, _provider: provider }, Instruments::new(&meter))
    }

    pub(super) fn render(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_else(|error| {
            error!(%error, "metrics cannot be written");
            String::new()
        })
    }
}
