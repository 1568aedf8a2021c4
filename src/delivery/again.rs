//! Dead letters that are given to the sink again, because somebody has mended what they were refused for.
//!
//! First the word that they come, then the letters in the order of the log, then the present state of every object that has
//! moved on since, so that whoever folds them ends up where it was. How far that is stands in the cursor. What is refused again is a
//! dead letter again. The log stands still meanwhile, and goes on from where it was.

use jiff::Timestamp;
use kubetide_sink::Record;
use tracing::{error, info};

use super::{
    Portion,
    dead_letter::{Part, Replaying},
    deliver::Tally,
    pump::{Course, Delivered, DeliveryError, Pump, takes},
};
use crate::{
    blocking::blocking,
    changelog::{Cursor, Errand},
};

/// What is to be sent next, and how many units of the whole that is.
struct Next {
    records: Vec<Record>,
    units: u64,
}

impl Pump {
    /// Notes that letters come next.
    pub(super) fn begin_letters(&mut self) -> Result<Course, DeliveryError> {
        let at = self.clock.wall();
        self.write_cursor(|file| file.change(|cursor| cursor.errand = Some(Errand::Letters { at, given: 0 })))?;
        Ok(Course::On)
    }

    /// Gives what is left to give.
    pub(super) async fn give_letters(&mut self, at: Timestamp) -> Result<Course, DeliveryError> {
        let mut replaying = match self.open_letters().await? {
            Ok(Some(replaying)) => replaying,
            // All were given, and the process was killed before that was noted.
            Ok(None) => return self.end_letters().await,
            Err(course) => return Ok(course),
        };
        info!(sink = %self.name, letters = replaying.letters(), "giving dead letters again");
        loop {
            if self.drain.is_cancelled() {
                return Ok(Course::Stop);
            }
            if let Ok(ordered) = self.orders.try_recv() {
                // It is refused as long as this is under way.
                self.obey(ordered)?;
            }
            let Some(Errand::Letters { given, .. }) = self.cursor.cursor().errand else { return Ok(Course::On) };
            if given >= replaying.units() {
                return self.end_letters().await;
            }
            let Next { records, units } = match self.next_letters(&mut replaying, at, given).await? {
                Ok(next) => next,
                Err(course) => return Ok(course),
            };
            let move_on = |cursor: &mut Cursor| cursor.errand = Some(Errand::Letters { at, given: given + units });
            if records.is_empty() {
                self.write_cursor(|file| file.change(move_on))?;
                continue;
            }
            let acknowledged = self.cursor.cursor().acknowledged;
            let portion = Portion { from: acknowledged + 1, to: acknowledged, records };
            let tally = Tally::of(&portion, false);
            match self.deliver(portion, move_on).await? {
                Delivered::Taken => self.report(tally),
                Delivered::Stopped => return Ok(Course::Stop),
                Delivered::Ordered | Delivered::Outdated => return Ok(Course::On),
            }
        }
    }

    /// From this unit on, as much as goes into a batch.
    async fn next_letters(
        &mut self,
        replaying: &mut Replaying,
        at: Timestamp,
        given: u64,
    ) -> Result<Result<Next, Course>, DeliveryError> {
        let acknowledged = self.cursor.cursor().acknowledged;
        let mut records = Vec::new();
        if given == 0 {
            let of = (replaying.before(), replaying.letters());
            records.push(self.view.letters_record(&self.name, &self.cluster, acknowledged, at, of));
        }
        let announced = records.len() as u64;
        let (most, most_bytes) = (self.limits.max_records, self.limits.max_bytes);
        let part = loop {
            let read = tokio::task::block_in_place(|| replaying.part(given + announced, most, most_bytes));
            // What is no letter any more stays, for somebody to look at.
            let kept = read.and_then(|part| self.keep_broken(&part).map(|()| part));
            match kept {
                Ok(part) => break part,
                Err(failed) => {
                    if let Some(course) = self.hold_letters("read", &failed).await? {
                        return Ok(Err(course));
                    }
                }
            }
        };
        if replaying.is_letter(given + announced) {
            records.extend(part.records);
        } else {
            records.extend(self.present_of(part.records, at).await?);
        }
        Ok(Ok(Next { records, units: announced + part.units }))
    }

    fn keep_broken(&mut self, part: &Part) -> std::io::Result<()> {
        for line in &part.broken {
            error!(sink = %self.name, "a dead letter was damaged while it waited to be given again, and stays in the files");
            tokio::task::block_in_place(|| self.policy.letters.keep(line))?;
        }
        Ok(())
    }

    /// What has become of the objects of these records, where that is not what was given last.
    async fn present_of(&mut self, given: Vec<Record>, at: Timestamp) -> Result<Vec<Record>, DeliveryError> {
        let (view, streams) = (self.view.clone(), self.streams.clone());
        let (acknowledged, snapshot) = (self.cursor.cursor().acknowledged, self.view.id_of_letters(&self.name, at));
        let look = move || {
            let present = view.present(|name| takes(&streams, name), acknowledged, snapshot, at)?;
            given.iter().filter_map(|record| present.behind(record).transpose()).collect::<Result<Vec<_>, _>>()
        };
        let records = blocking(look).await.map_err(|source| self.cannot_read(source))?;
        Ok(records.into_iter().filter(|record| self.wants(record)).collect())
    }

    /// The letters, each of which is nowhere else any more.
    async fn open_letters(&mut self) -> Result<Result<Option<Replaying>, Course>, DeliveryError> {
        loop {
            let letters = &self.policy.letters;
            let opened = tokio::task::block_in_place(|| match letters.replaying()? {
                Some(replaying) => letters.settle().map(|()| Some(replaying)),
                None => Ok(None),
            });
            match opened {
                Ok(opened) => {
                    self.weigh_letters();
                    return Ok(Ok(opened));
                }
                Err(failed) => {
                    if let Some(course) = self.hold_letters("move", &failed).await? {
                        return Ok(Err(course));
                    }
                }
            }
        }
    }

    /// All are given: the log goes on.
    async fn end_letters(&mut self) -> Result<Course, DeliveryError> {
        while let Err(failed) = tokio::task::block_in_place(|| self.policy.letters.finish()) {
            if let Some(course) = self.hold_letters("remove", &failed).await? {
                return Ok(course);
            }
        }
        self.relieved();
        self.write_cursor(|file| file.change(|cursor| cursor.errand = None))?;
        info!(sink = %self.name, "the dead letters are given");
        Ok(Course::On)
    }

    /// Nothing goes on until the files can be used. Where to, if not on.
    async fn hold_letters(&mut self, what: &str, failed: &std::io::Error) -> Result<Option<Course>, DeliveryError> {
        let directory = self.policy.letters.directory().map(|path| path.display().to_string()).unwrap_or_default();
        let message = format!("cannot {what} the dead letters in {directory}: {failed}");
        self.vitals.failed(&message, "hold");
        error!(sink = %self.name, error = message, "delivery is held until somebody mends this; nothing is lost");
        let pause = self.backoff.next(1.0, self.longest_pause, None);
        Ok(match self.rest(pause).await? {
            None => None,
            Some(Delivered::Stopped) => Some(Course::Stop),
            Some(_) => Some(Course::On),
        })
    }
}
