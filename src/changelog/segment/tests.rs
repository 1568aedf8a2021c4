//! Segments on a disk that can be broken at will: what is cut, what is refused, what a full disk leaves.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::path::Path;

use kubetide_sink::{Record, sample};
use rand::{SeedableRng as _, rngs::StdRng};

use super::{writer::AppendError, *};
use crate::{
    change::Managed,
    changelog::{
        disk::faulty::{Faults, FaultyDisk},
        frame::{Encoder, Frame},
    },
};

const LOG: &str = "/log";

fn record(seq: u64) -> Record {
    sample::record(seq, format!("{{\"seq\":{seq}}}"))
}

fn frame(first: u64, last: u64) -> Frame {
    let records: Vec<_> = (first..=last).map(record).collect();
    let managed = vec![Managed::default(); records.len()];
    Frame { first_seq: first, managed, records, ..Frame::default() }
}

fn opened_at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn path(segment: u64) -> PathBuf {
    segment_path(Path::new(LOG), segment)
}

/// What opening the log found: the records and the writing end.
type Opened = Result<(Vec<Record>, Writer), OpenError>;

fn open(disk: &FaultyDisk, applied: Option<Place>, passed: u64) -> Opened {
    let mut records = Vec::new();
    let recovery = Recovery {
        disk: disk.shared(),
        directory: Path::new(LOG),
        log_id: &sample::LOG_ID.into(),
        segment_len: SEGMENT_LEN,
        now: opened_at(1),
        applied,
        oldest_needed: 1,
        passed: Some(passed),
    };
    let (writer, _) = recovery.run(|frame, _| {
        records.extend(frame.records);
        Ok(())
    })?;
    Ok((records, writer))
}

/// The records, and where the next frame goes.
fn found(opened: Opened) -> Result<(Vec<Record>, Place), OpenError> {
    opened.map(|(records, writer)| (records, writer.place()))
}

fn is_damage(opened: Opened, file: &Path) -> bool {
    matches!(&opened, Err(OpenError::Damaged { file: named, .. }) if named == file)
}

/// Two segments: 1..=4 in two frames, 5..=9 in an opening frame without records and two frames. Returns the places behind
/// each frame with records.
fn write_log(disk: &FaultyDisk) -> Vec<Place> {
    let (_, mut writer) = open(disk, None, 0).unwrap();
    let mut places = vec![writer.append(&frame(1, 2)).unwrap(), writer.append(&frame(3, 4)).unwrap()];
    assert_eq!(writer.roll(&Frame { first_seq: 5, ..Frame::default() }, opened_at(2)).unwrap(), 5);
    places.extend([writer.append(&frame(5, 7)).unwrap(), writer.append(&frame(8, 9)).unwrap()]);
    places
}

fn all_records() -> Vec<Record> {
    (1..=9).map(record).collect()
}

#[test]
fn what_was_appended_comes_back_and_the_log_goes_on_behind_it() {
    let disk = FaultyDisk::default();
    let places = write_log(&disk);
    assert_eq!(segments_in(&disk, Path::new(LOG)).unwrap(), [1, 5]);
    assert_eq!(found(open(&disk, None, 0)).unwrap(), (all_records(), places[3]));
    let (replayed, mut writer) = open(&disk, Some(places[1]), 4).unwrap();
    assert_eq!(replayed, all_records()[4..], "only what the store has missed is replayed");
    writer.append(&frame(10, 10)).unwrap();
    assert_eq!(open(&disk, None, 0).unwrap().0, (1..=10).map(record).collect::<Vec<_>>());
}

#[test]
fn a_segment_without_a_record_is_never_full_however_long_it_is() {
    let disk = FaultyDisk::default();
    let (_, mut writer) = open(&disk, None, 0).unwrap();
    writer.append(&frame(1, 4)).unwrap();
    writer.roll(&Frame { first_seq: 5, ..Frame::default() }, opened_at(2)).unwrap();
    writer.segment_len = 1000;
    while writer.place().offset < 3000 {
        writer.append(&Frame { first_seq: 5, ..Frame::default() }).unwrap();
        assert!(!writer.is_full());
    }
    writer.append(&frame(5, 5)).unwrap();
    assert!(writer.is_full());
    assert_eq!(writer.roll(&Frame { first_seq: 6, ..Frame::default() }, opened_at(3)).unwrap(), 6);
    assert_eq!(open(&disk, None, 0).unwrap().0, (1..=5).map(record).collect::<Vec<_>>());
    let refused = writer.roll(&Frame { first_seq: 6, ..Frame::default() }, opened_at(4));
    assert!(matches!(refused, Err(AppendError::Broken(_))), "it would take its own place");
    assert_eq!(open(&disk, None, 0).unwrap().0, (1..=5).map(record).collect::<Vec<_>>());
}

#[test]
fn a_segment_knows_when_it_was_opened() {
    let disk = FaultyDisk::default();
    write_log(&disk);
    for segment in [1, 5] {
        let header = read_header(&disk, Path::new(LOG), sample::LOG_ID, segment).unwrap();
        assert_eq!(header, SegmentHeader { first_seq: segment, opened_at: opened_at(segment as i64 / 4 + 1) });
    }
    let other = "01JCXZ3V9T6Q0W8Y2K4M6N8P0S";
    assert!(matches!(read_header(&disk, Path::new(LOG), other, 1), Err(OpenError::Damaged { offset: 0, .. })));
}

#[test]
fn every_truncation_is_cut_as_torn_or_refused_and_never_loses_what_was_built_on() {
    let disk = FaultyDisk::default();
    let places = write_log(&disk);
    let whole = disk.read(&path(5));
    for len in 0..whole.len() {
        let reset = || disk.put(&path(5), &whole[..len]);
        reset();
        // The store has applied everything, or a sink has acknowledged it: then it is not a torn write.
        assert!(is_damage(open(&disk, Some(places[3]), 0), &path(5)), "{len}");
        assert!(is_damage(open(&disk, Some(places[1]), 9), &path(5)), "{len}");
        assert_eq!(disk.read(&path(5)), &whole[..len], "what is refused is left as it is");
        let (records, _) = open(&disk, Some(places[1]), 4).unwrap();
        let expected = if (len as u64) < places[2].offset { 4 } else { 7 };
        assert_eq!(records, all_records()[4..expected], "cut at {len}");
    }
    let whole = disk.read(&path(1));
    for unfinished in [false, true] {
        disk.put(&path(5), if unfinished { b"KTSEG" } else { b"" });
        for len in 0..whole.len() {
            disk.put(&path(1), &whole[..len]);
            assert!(open(&disk, None, 0).is_err(), "a segment in the middle is never cut: {len}");
        }
    }
}

#[test]
fn every_flipped_bit_is_refused_by_file_and_offset_or_cut_with_the_last_frame() {
    let disk = FaultyDisk::default();
    let places = write_log(&disk);
    for segment in [1, 5] {
        let whole = disk.read(&path(segment));
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            disk.put(&path(segment), &bytes);
            assert!(is_damage(open(&disk, Some(places[3]), 9), &path(segment)), "bit {bit} of {segment}");
            assert_eq!(disk.read(&path(segment)), bytes, "what is refused is left as it is");
            match open(&disk, None, 0) {
                Err(OpenError::Damaged { file, .. }) => assert_eq!(file, path(segment)),
                Err(other) => panic!("{other}"),
                Ok((records, _)) => {
                    assert!(segment == 5 && bit as u64 / 8 >= places[2].offset, "bit {bit} of {segment}");
                    assert_eq!(records, all_records()[..7]);
                }
            }
            disk.put(&path(segment), &whole);
        }
    }
    assert_eq!(open(&disk, None, 0).unwrap().0, all_records());
}

#[test]
fn a_missing_segment_is_refused() {
    let disk = FaultyDisk::default();
    let places = write_log(&disk);
    let (_, mut writer) = open(&disk, None, 0).unwrap();
    writer.roll(&Frame { first_seq: 10, ..Frame::default() }, opened_at(3)).unwrap();
    let end = writer.append(&frame(10, 12)).unwrap();
    let middle = disk.read(&path(5));
    disk.remove(&path(5)).unwrap();
    // Refused where the log breaks off, whatever the store has seen.
    for applied in [None, Some(places[1])] {
        assert!(is_damage(open(&disk, applied, 0), &path(1)));
    }
    assert!(is_damage(open(&disk, Some(places[3]), 0), &path(5)), "the store was built on it");
    disk.put(&path(5), &middle);
    disk.remove(&path(10)).unwrap();
    assert!(is_damage(open(&disk, Some(end), 0), &path(10)));
    assert!(is_damage(open(&disk, Some(places[1]), 12), &path(5)), "a sink has acknowledged what was in it");
    disk.remove(&path(1)).unwrap();
    assert!(is_damage(open(&disk, None, 0), &path(1)));
    assert_eq!(found(open(&disk, Some(places[3]), 9)).unwrap(), (vec![], places[3]), "retention removes the oldest");
}

#[test]
fn a_store_that_is_beyond_the_end_or_between_two_frames_is_refused() {
    let disk = FaultyDisk::default();
    let places = write_log(&disk);
    for end in [places[0], places[1], places[2], places[3]] {
        let file = path(end.segment);
        for wrong in [
            Place { offset: end.offset + 1, ..end },
            Place { offset: end.offset - 1, ..end },
            Place { next_seq: end.next_seq + 1, ..end },
            Place { next_seq: end.next_seq - 1, ..end },
        ] {
            assert!(is_damage(open(&disk, Some(wrong), 0), &file), "{wrong:?}");
        }
    }
    let beyond = Place { offset: places[3].offset + 400, next_seq: 12, ..places[3] };
    assert!(is_damage(open(&disk, Some(beyond), 0), &path(5)));
}

#[test]
fn a_foreign_file_is_ignored_and_a_segment_under_another_name_is_refused() {
    let disk = FaultyDisk::default();
    let places = write_log(&disk);
    for name in ["5.seg", "+0000000000000000005.seg", "00000000000000000010.seg~", "lost+found", "ID", ".seg"] {
        disk.put(&Path::new(LOG).join(name), b"anything");
    }
    assert_eq!(found(open(&disk, None, 0)).unwrap(), (all_records(), places[3]));
    disk.put(&path(10), &disk.read(&path(5)));
    assert!(is_damage(open(&disk, None, 0), &path(10)));
    disk.remove(&path(10)).unwrap();
    disk.put(&path(5), &disk.read(&path(1)));
    assert!(is_damage(open(&disk, None, 0), &path(5)));
}

#[test]
fn a_segment_that_was_only_being_made_is_made_again() {
    let made = FaultyDisk::default();
    let places = write_log(&made);
    let opening = made.read(&path(5))[..places[2].offset as usize].to_vec();
    let header = &opening[..SEGMENT_HEADER_LEN];
    let frame_only = [&[0; SEGMENT_HEADER_LEN], &opening[SEGMENT_HEADER_LEN..SEGMENT_HEADER_LEN + HEADER_LEN]].concat();
    for left in [&b"KTSEG"[..], b"", &[0; SEGMENT_HEADER_LEN], &[0; 4096], header, &frame_only] {
        let disk = FaultyDisk::default();
        write_log(&disk);
        disk.put(&path(5), left);
        let (records, mut writer) = open(&disk, Some(places[1]), 4).unwrap();
        assert_eq!((records, writer.place()), (vec![], places[1]), "{left:?}");
        assert_eq!(segments_in(&disk, Path::new(LOG)).unwrap(), [1]);
        writer.roll(&Frame { first_seq: 5, ..Frame::default() }, opened_at(2)).unwrap();
        writer.append(&frame(5, 5)).unwrap();
        assert_eq!(open(&disk, None, 5).unwrap().0, all_records()[..5]);
        // But where something was built on it, it was more than being made.
        disk.put(&path(5), left);
        assert!(is_damage(open(&disk, Some(places[1]), 5), &path(5)));
        assert!(is_damage(open(&disk, Some(places[2]), 0), &path(5)));
    }
}

#[test]
fn frames_that_share_a_sync_are_torn_together_and_a_broken_one_before_a_sync_is_damage() {
    let disk = FaultyDisk::default();
    let (_, mut writer) = open(&disk, None, 0).unwrap();
    let first = writer.append(&frame(1, 2)).unwrap();
    let second = writer.write(&frame(3, 4)).unwrap();
    writer.write(&frame(5, 6)).unwrap();
    let shared = disk.read(&path(1));
    writer.sync().unwrap();
    writer.write(&frame(7, 8)).unwrap();
    let synced = disk.read(&path(1));

    let mut hole = shared.clone();
    hole[first.offset as usize..second.offset as usize].fill(0);
    disk.put(&path(1), &hole);
    assert_eq!(found(open(&disk, None, 0)).unwrap(), (all_records()[..2].to_vec(), first));
    let mut hole = synced;
    hole[first.offset as usize..second.offset as usize].fill(0);
    disk.put(&path(1), &hole);
    assert!(is_damage(open(&disk, None, 0), &path(1)), "the last frame says that this one was durable");
}

#[test]
fn what_a_killed_process_left_unsynced_is_durable_before_anything_is_built_on_it() {
    for seed in 0..200 {
        let disk = FaultyDisk::default();
        let (_, mut writer) = open(&disk, None, 0).unwrap();
        writer.write(&frame(1, 2)).unwrap();
        disk.kill();
        let (records, writer) = open(&disk, None, 0).unwrap();
        assert_eq!(records.len(), 2);
        let applied = writer.place();
        disk.crash(&mut StdRng::seed_from_u64(seed));
        assert_eq!(found(open(&disk, Some(applied), 2)).unwrap(), (vec![], applied));
    }
}

#[test]
fn a_full_disk_changes_nothing_and_the_log_goes_on_when_there_is_room() {
    let room_for = |bytes| Faults { space: Some(bytes), ..Faults::default() };
    // Every byte at which the room may end: in a frame's header, in its payload, in a new segment's header, before its name.
    for space in 0..700 {
        let disk = FaultyDisk::default();
        let (_, mut writer) = open(&disk, None, 0).unwrap();
        writer.append(&frame(1, 2)).unwrap();
        disk.set(room_for(space));
        let mut refused = 0;
        for (first, last) in [(3, 4), (5, 7), (8, 9)] {
            let before = (writer.place(), disk.read(&path(writer.place().segment)));
            let step = |writer: &mut Writer| {
                if first == 5 && writer.place().segment == 1 {
                    writer.roll(&Frame { first_seq: 5, ..Frame::default() }, opened_at(2))?;
                }
                writer.append(&frame(first, last))
            };
            if let Err(error) = step(&mut writer) {
                assert!(matches!(error, AppendError::Full(_)), "{error}");
                if writer.place().segment == before.0.segment {
                    assert_eq!((writer.place(), disk.read(&path(before.0.segment))), before);
                }
                refused += 1;
                // None, then some, then enough.
                disk.set(room_for(3));
                assert!(matches!(step(&mut writer), Err(AppendError::Full(_))));
                disk.set(Faults::default());
                step(&mut writer).unwrap();
                disk.set(room_for(space));
            }
        }
        assert!(refused > 0 || space > 300, "{space}");
        disk.crash(&mut StdRng::seed_from_u64(space));
        assert_eq!(found(open(&disk, None, 0)).unwrap(), (all_records(), writer.place()), "{space}");
    }
}

#[test]
fn a_write_that_is_cut_short_or_interrupted_goes_on() {
    for most in [1, 7, 64] {
        let disk = FaultyDisk::default();
        disk.set(Faults { short_writes: Some(most), ..Faults::default() });
        let places = write_log(&disk);
        assert_eq!(found(open(&disk, None, 0)).unwrap(), (all_records(), places[3]));
    }
}

#[test]
fn after_a_failed_sync_or_a_failed_cut_nothing_more_is_written() {
    let opening = Frame { first_seq: 3, ..Frame::default() };
    type Act = fn(&mut Writer, &Frame) -> Result<(), AppendError>;
    let append: Act = |writer, _| writer.append(&frame(3, 4)).map(drop);
    let roll: Act = |writer, opening| writer.roll(opening, opened_at(2)).map(drop);
    let sync = Faults { failing_syncs: true, ..Faults::default() };
    let name = Faults { failing_directory_syncs: true, ..Faults::default() };
    let cut = Faults { failing_cuts: true, space: Some(60), ..Faults::default() };
    for (faults, act) in [(sync.clone(), append), (sync, roll), (name, roll), (cut, append)] {
        let disk = FaultyDisk::default();
        let (_, mut writer) = open(&disk, None, 0).unwrap();
        let durable = writer.append(&frame(1, 2)).unwrap();
        disk.set(faults.clone());
        assert!(matches!(act(&mut writer, &opening), Err(AppendError::Broken(_))), "{faults:?}");
        disk.set(Faults::default());
        // That it would work again proves nothing: a second sync says yes though the first one's pages are gone.
        assert!(matches!(act(&mut writer, &opening), Err(AppendError::Broken(_))), "{faults:?}");
        assert!(matches!(writer.sync(), Err(AppendError::Broken(_))), "{faults:?}");
        disk.crash(&mut StdRng::seed_from_u64(1));
        let (records, _) = open(&disk, Some(durable), 2).unwrap();
        assert!(records.is_empty() || records == all_records()[2..4]);
    }
}

#[test]
fn a_tail_full_of_beginnings_is_looked_at_once() {
    let disk = FaultyDisk::default();
    let places = write_log(&disk);
    // A torn frame, then 8 MiB of what looks like the beginning of one: a search that took each at its word would never end.
    let mut bytes = disk.read(&path(5));
    let header = bytes[places[2].offset as usize..][..HEADER_LEN].to_vec();
    bytes.truncate(places[2].offset as usize + 20);
    while bytes.len() < 8 << 20 {
        bytes.extend_from_slice(&header[..20]);
    }
    disk.put(&path(5), &bytes);
    assert_eq!(open(&disk, None, 0).unwrap().0, all_records()[..7]);
    // The same with a whole header at its very end, across the edge of what is read in one go.
    let later = Encoder::new().unwrap().encode(&frame(100, 100), 1 << 40).unwrap()[..HEADER_LEN].to_vec();
    for back in 0..HEADER_LEN {
        let edge = places[2].offset as usize + (1 << 20) - back;
        let mut bytes = bytes.clone();
        bytes.truncate(edge);
        bytes.extend_from_slice(&later);
        disk.put(&path(5), &bytes);
        assert!(is_damage(open(&disk, None, 0), &path(5)), "{back}");
    }
}
