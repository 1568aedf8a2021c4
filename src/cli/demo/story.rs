//! The story: six short acts, each of them a promise put to the test.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use kubetide_sink::Op;

use super::{
    churn::STREAMS,
    fold::Key,
    receiver::Received,
    sample::Sample,
    screen::Screen,
    stage::{Deadline, Late, Stage},
    verdict::{Evidence, Verdict},
};

/// Seconds of changes in each act: seen live; with the receiver away; with the API server silent; before, during and after the kill.
const LIVE: usize = 6;
const AWAY: usize = 5;
const SILENT: usize = 3;
const AROUND_THE_KILL: usize = 6;
/// Inferred deletes that are shown before the rest is only counted.
const DELETES_SHOWN: usize = 7;

/// How long things stay on the screen before the story goes on.
#[derive(Clone, Copy)]
pub(super) struct Pace {
    /// A caption.
    caption: Duration,
    /// What came of an act.
    outcome: Duration,
    /// Between two of the live changes that are shown: more of them could not be read.
    line: Duration,
}

impl Pace {
    /// For somebody who reads along.
    pub(super) const fn to_read() -> Self {
        let ms = Duration::from_millis;
        Self { caption: ms(1500), outcome: ms(2000), line: ms(400) }
    }

    /// For nobody.
    pub(super) const fn at_once() -> Self {
        Self { caption: Duration::ZERO, outcome: Duration::ZERO, line: Duration::ZERO }
    }
}

/// What the acts leave for the verdict.
#[derive(Default)]
struct Notes {
    at_start: usize,
    waited: usize,
    /// The streams whose history was broken, and the objects that went meanwhile.
    broken: Vec<String>,
    went_unseen: BTreeSet<Key>,
    /// LIST requests until the kill.
    lists_at_kill: Option<u64>,
    /// What did not happen, and ended the story early.
    late: Option<Late>,
}

/// The story as it is told.
pub(super) struct Story {
    stage: Stage,
    screen: Screen,
    pace: Pace,
    notes: Notes,
    began: Instant,
}

impl Story {
    pub(super) fn new(stage: Stage, screen: Screen, pace: Pace) -> Self {
        Self { stage, screen, pace, notes: Notes::default(), began: Instant::now() }
    }

    /// All acts but the verdict; fewer of them if one does not come to its end, which is then for the verdict to tell.
    pub(super) async fn acts(&mut self) -> anyhow::Result<()> {
        let told = self.all_acts().await;
        self.note_late(told)
    }

    async fn all_acts(&mut self) -> anyhow::Result<()> {
        self.screen.opening("kubetide demo", "a simulated cluster, the real pipeline, a file as the receiver")?;
        self.snapshot().await?;
        self.live_changes().await?;
        self.receiver_goes_away().await?;
        self.api_server_forgets().await?;
        self.kill().await
    }

    async fn snapshot(&mut self) -> anyhow::Result<()> {
        self.screen.act(1, "A snapshot", &["What is in the cluster is read once, page by page."])?;
        self.pause(self.pace.caption).await?;
        self.notes.at_start = self.stage.churn.current().len();
        let started = Instant::now();
        self.stage.pipeline.start()?;
        let records = self.until_level("the snapshot").await?;
        let took = started.elapsed();
        let objects: Vec<&Received> = records.iter().filter(|record| record.change().is_some()).collect();
        for (_, stream) in STREAMS {
            let first = objects.iter().find(|record| record.stream == stream);
            self.screen.record(first.and_then(|record| record.brief()))?;
        }
        self.screen.aside(&format!("… and {} more", objects.len().saturating_sub(STREAMS.len())))?;
        for record in records.iter().filter(|record| record.op == "snapshot_finished") {
            self.screen.record(record.brief())?;
        }
        let (count, seconds) = (objects.len(), took.as_secs_f64());
        let kept = count == self.notes.at_start;
        self.outcome(kept, &format!("{count} objects are at the receiver, {seconds:.1} s after the start.")).await
    }

    async fn live_changes(&mut self) -> anyhow::Result<()> {
        let captions = ["Then each change is a record: + created, ~ changed, - deleted."];
        self.screen.act(2, "Live changes", &captions)?;
        self.pause(self.pace.caption).await?;
        let changes = self.changes_in(LIVE);
        self.stage.churn.begin(changes);
        let mut sample = Sample::new(self.pace.line);
        while !self.stage.churn.is_done() {
            let records = self.stage.beat().await?;
            sample.show(&records, &mut self.screen)?;
        }
        sample.count(&self.until_level("the delivery of the live changes").await?);
        self.screen.aside(&format!("… and {} more", sample.left()))?;
        let (seen, slowest) = (sample.seen, sample.slowest.as_secs_f64());
        self.outcome(self.is_whole(), &format!("{seen} changes, each at the receiver within {slowest:.1} s.")).await
    }

    async fn receiver_goes_away(&mut self) -> anyhow::Result<()> {
        let captions = ["Nothing can be delivered now. The changes wait in the log, on disk."];
        self.screen.act(3, "The receiver goes away", &captions)?;
        self.stage.receiver.go_away()?;
        self.pause(self.pace.caption).await?;
        let refused_before = self.stage.pipeline.refusals();
        self.stage.churn.begin(self.changes_in(AWAY));
        while !self.stage.churn.is_done() {
            self.stage.beat().await?;
            self.screen.passing(&format!("changes waiting: {}", self.stage.churn.owed()))?;
        }
        let deadline = Deadline::of("a refused delivery");
        while self.stage.pipeline.refusals() == refused_before {
            self.stage.beat().await?;
            deadline.check()?;
        }
        let waiting = self.stage.churn.owed();
        let refusals = self.stage.pipeline.refusals() - refused_before;
        self.screen.aside(&format!("changes waiting: {waiting}, deliveries refused: {refusals}"))?;
        self.pause(self.pace.caption).await?;

        let (back, back_at) = (Instant::now(), Timestamp::now());
        self.stage.receiver.come_back()?;
        let records = self.until_level("the delivery of what had waited").await?;
        let took = back.elapsed().as_secs_f64();
        self.notes.waited = records.iter().filter(|record| record.observed_at < back_at).count();
        let oldest = records.iter().map(|record| record.observed_at).min().unwrap_or(back_at);
        let waited = back_at.duration_since(oldest).as_secs_f64();
        self.screen.aside("It is back.")?;
        let text = format!("All {waiting} arrived in {took:.1} s, in order. The oldest had waited {waited:.1} s.");
        self.outcome(self.is_whole(), &text).await
    }

    async fn api_server_forgets(&mut self) -> anyhow::Result<()> {
        let captions = [
            "It falls silent, objects go, and then its history is lost (410 Gone).",
            "No watch can tell any more what happened.",
        ];
        self.screen.act(4, "The API server forgets", &captions)?;
        self.pause(self.pace.caption).await?;
        let before = self.stage.churn.current().clone();
        self.stage.silence();
        self.stage.churn.lose_sight();
        let made_before = self.stage.churn.made();
        self.stage.churn.begin(self.changes_in(SILENT));
        while !self.stage.churn.is_done() {
            self.stage.beat().await?;
            let made = self.stage.churn.made() - made_before;
            self.screen.passing(&format!("changes that nobody sees: {made}"))?;
        }
        let recreated = self.stage.churn.delete_ours()?;
        let after = self.stage.churn.current();
        let gone = before.keys().filter(|key| !after.contains_key(key)).cloned();
        self.notes.broken = STREAMS.map(|(_, stream)| stream.to_owned()).into();
        self.notes.went_unseen = gone.chain([recreated.clone()]).collect();
        let (made, deletes) = (self.stage.churn.made() - made_before, self.notes.went_unseen.len());
        self.screen.aside(&format!("changes that nobody saw: {made}, objects gone: {deletes}"))?;
        self.screen.aside("It is back. What was missed is found by comparing:")?;
        self.screen.space()?;

        self.stage.restart_without_history().await;
        self.stage.churn.regain_sight();
        let mut records = Vec::new();
        let deadline = Deadline::of("the comparison after the gap");
        while !self.stage.is_level() || of_op(&records, "resync_finished").count() < STREAMS.len() {
            records.extend(self.stage.beat().await?);
            deadline.check()?;
        }
        self.show_resync(&records, &recreated)?;
        let inferred = records.iter().filter(|record| record.is_inferred() && record.op == Op::Delete.as_str()).count();
        let gaps = of_op(&records, "gap").count();
        let text = format!("A gap per stream says what is unknown: {gaps}. Deletes found: {inferred} of {deletes}.");
        self.outcome(gaps == STREAMS.len() && inferred == deletes, &text).await
    }

    /// Gaps, then what was found, then the ends: in the log each stream has its own in this order.
    fn show_resync(&mut self, records: &[Received], recreated: &Key) -> anyhow::Result<()> {
        for record in of_op(records, "gap") {
            self.screen.record(record.brief())?;
        }
        let inferred: Vec<&Received> = records.iter().filter(|record| record.is_inferred()).collect();
        let of_recreated =
            |record: &&&Received| record.name == recreated.name && record.namespace == recreated.namespace;
        let mut shown = 0;
        // The one that came back under its name: the end of the old one, then the new one.
        for record in inferred.iter().filter(of_recreated) {
            self.screen.record(record.brief())?;
            shown += 1;
        }
        let others = inferred.iter().filter(|record| record.op == Op::Delete.as_str() && !of_recreated(record));
        for record in others.take(DELETES_SHOWN) {
            self.screen.record(record.brief())?;
            shown += 1;
        }
        self.screen.aside(&format!("… and {} more, all of them inferred", inferred.len() - shown))?;
        for record in of_op(records, "resync_finished") {
            self.screen.record(record.brief())?;
        }
        Ok(())
    }

    async fn kill(&mut self) -> anyhow::Result<()> {
        let captions = ["kubetide is killed (SIGKILL) while changes pour in, and started again."];
        self.screen.act(5, "The process dies", &captions)?;
        self.pause(self.pace.caption).await?;
        let changes = self.changes_in(AROUND_THE_KILL);
        self.stage.churn.begin(changes);
        let mut sample = Sample::new(self.pace.line);
        while self.stage.churn.left() > changes * 3 / 4 {
            let records = self.stage.beat().await?;
            sample.show(&records, &mut self.screen)?;
        }

        self.notes.lists_at_kill = Some(self.stage.lists());
        self.stage.pipeline.kill().await?;
        // What it had written before it died.
        sample.count(&self.stage.read()?);
        self.screen.aside("killed")?;
        let made_before = self.stage.churn.made();
        while self.stage.churn.left() > changes / 4 {
            self.stage.beat().await?;
            let made = self.stage.churn.made() - made_before;
            self.screen.passing(&format!("changes while it is down: {made}"))?;
        }
        let made = self.stage.churn.made() - made_before;
        self.screen.aside(&format!("changes while it was down: {made}"))?;

        let started = Instant::now();
        self.stage.pipeline.start()?;
        let deadline = Deadline::of("the resumption");
        let mut records = self.stage.beat().await?;
        while records.is_empty() {
            deadline.check()?;
            records = self.stage.beat().await?;
        }
        let took = started.elapsed().as_secs_f64();
        self.screen.aside("started again")?;
        let mut sample = Sample::new(self.pace.line);
        sample.show(&records, &mut self.screen)?;
        while !self.stage.churn.is_done() {
            let records = self.stage.beat().await?;
            sample.show(&records, &mut self.screen)?;
        }
        sample.count(&self.until_level("the delivery of what was missed").await?);
        self.screen.aside(&format!("… and {} more", sample.left()))?;
        let (lists, repeated) = (self.lists_after_kill(), self.stage.fold.repeated.len());
        let text = format!("Resumed in {took:.1} s where it had stopped: {lists} LISTs, {repeated} records twice.");
        self.outcome(lists == 0 && self.is_whole(), &text).await
    }

    /// Whether something that did not happen has ended the story.
    pub(super) fn is_over(&self) -> bool {
        self.notes.late.is_some()
    }

    /// Live changes, for as long as it is not dropped.
    pub(super) async fn go_on(&mut self) -> anyhow::Result<()> {
        self.screen.act(6, "And on it goes", &["Until Ctrl-C; then comes the verdict."])?;
        self.stage.churn.begin(usize::MAX);
        loop {
            for record in self.stage.beat().await? {
                self.screen.record(record.brief())?;
            }
        }
    }

    /// Stops the pipeline, and compares.
    pub(super) async fn verdict(&mut self) -> anyhow::Result<Verdict> {
        self.stage.churn.begin(0);
        if self.notes.late.is_none() {
            let level = self.until_level("the delivery of the last changes").await;
            self.note_late(level.map(drop))?;
        }
        let elapsed = self.began.elapsed();
        let status = self.stage.pipeline.stop().await?;
        self.stage.read()?;
        let lists_after_kill = self.lists_after_kill();
        let Notes { at_start, waited, broken, went_unseen, late, .. } = std::mem::take(&mut self.notes);
        let verdict = Verdict::of(&Evidence {
            receiver: &self.stage.fold,
            cluster: self.stage.churn.objects()?,
            made: self.stage.churn.made(),
            owed: self.stage.churn.owed(),
            at_start,
            broken,
            went_unseen,
            waited,
            lists_after_kill,
            batches: self.stage.pipeline.batches(),
            exit_code: status.code(),
            elapsed,
            late: late.map(|late| late.to_string()),
        });
        verdict.tell(&mut self.screen)?;
        Ok(verdict)
    }

    fn note_late(&mut self, ended: anyhow::Result<()>) -> anyhow::Result<()> {
        match ended.map_err(anyhow::Error::downcast) {
            Ok(()) => Ok(()),
            Err(Ok(late)) => {
                self.notes.late = Some(late);
                Ok(())
            }
            Err(Err(error)) => Err(error),
        }
    }

    /// Ends whatever runs, and removes what it has written.
    pub(super) async fn clear(mut self) {
        self.screen.close();
        self.stage.clear().await;
    }

    /// Waits until the receiver has everything; gives the records that came.
    async fn until_level(&mut self, what: &'static str) -> anyhow::Result<Vec<Received>> {
        let deadline = Deadline::of(what);
        let mut records = Vec::new();
        while !self.stage.is_level() {
            records.extend(self.stage.beat().await?);
            deadline.check()?;
        }
        Ok(records)
    }

    async fn outcome(&mut self, kept: bool, text: &str) -> anyhow::Result<()> {
        self.screen.space()?;
        self.screen.outcome(kept, text)?;
        self.pause(self.pace.outcome).await
    }

    async fn pause(&mut self, time: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + time;
        while Instant::now() < until {
            self.stage.beat().await?;
        }
        Ok(())
    }

    /// Whether the receiver has every place of the log so far, in order.
    fn is_whole(&self) -> bool {
        self.stage.fold.holes == 0 && self.stage.fold.out_of_order == 0
    }

    fn lists_after_kill(&self) -> u64 {
        self.notes.lists_at_kill.map_or(0, |lists| self.stage.lists() - lists)
    }

    fn changes_in(&self, seconds: usize) -> usize {
        self.stage.churn.per_second() * seconds
    }
}

fn of_op<'a>(records: &'a [Received], op: &'a str) -> impl Iterator<Item = &'a Received> {
    records.iter().filter(move |record| record.op == op)
}
