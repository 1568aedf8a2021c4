//! Segment files: where frames are appended, and how the end is found again after a crash.
//!
//! A segment opens with a header of its own and a frame with the states of all streams. Only the last frame of the last
//! segment can be torn, and only if nothing has been built on it; any other damage is refused, by file and offset.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    OpenError,
    directory::sync_directory,
    frame::{self, Encoder, Frame, HEADER_LEN, Header},
};

/// A segment is closed when it has grown past this.
pub(super) const SEGMENT_LEN: u64 = 64 * 1024 * 1024;
const MAGIC: &[u8; 8] = b"KTSEG\0\0\x01";
/// Magic, log id, first seq, crc32c.
const SEGMENT_HEADER_LEN: usize = 8 + 26 + 8 + 4;

/// A place in the log, between two frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub(super) struct Place {
    /// The segment, by the seq it begins with.
    pub(super) segment: u64,
    /// The offset in its file.
    pub(super) offset: u64,
    /// The seq of the next record behind this place.
    pub(super) next_seq: u64,
}

impl Place {
    /// The first frame of a segment.
    pub(super) const fn start_of(segment: u64) -> Self {
        Self { segment, offset: SEGMENT_HEADER_LEN as u64, next_seq: segment }
    }
}

pub(super) fn segment_path(directory: &Path, first_seq: u64) -> PathBuf {
    directory.join(format!("{first_seq:020}.seg"))
}

/// The segments in the directory, by their first seq, in order.
pub(super) fn segments_in(directory: &Path) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let digits = name.to_str().and_then(|name| name.strip_suffix(".seg"));
        found.extend(digits.and_then(|digits| digits.parse::<u64>().ok()));
    }
    found.sort_unstable();
    Ok(found)
}

fn segment_header(log_id: &str, first_seq: u64) -> [u8; SEGMENT_HEADER_LEN] {
    let mut header = [0; SEGMENT_HEADER_LEN];
    header[..8].copy_from_slice(MAGIC);
    header[8..34].copy_from_slice(log_id.as_bytes());
    header[34..42].copy_from_slice(&first_seq.to_le_bytes());
    let crc = crc32c::crc32c(&header[..42]);
    header[42..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Reads the frame at `place`, checking its sum. None at the end of the file.
pub(super) fn read_frame(file: &File, path: &Path, place: Place) -> Result<Option<(Header, Vec<u8>)>, OpenError> {
    let damaged =
        |problem: &str| OpenError::Damaged { file: path.into(), offset: place.offset, problem: problem.into() };
    let failed = |source| OpenError::Directory { operation: "read", path: path.into(), source };
    let mut header = [0; HEADER_LEN];
    match read_up_to(file, &mut header, place.offset).map_err(failed)? {
        0 => return Ok(None),
        HEADER_LEN => {}
        _ => return Err(damaged("the frame's header is cut off")),
    }
    let header = Header::parse(&header).ok_or_else(|| damaged("not a frame"))?;
    let mut payload = vec![0; header.payload_len as usize];
    if read_up_to(file, &mut payload, place.offset + HEADER_LEN as u64).map_err(failed)? < payload.len() {
        return Err(damaged("the frame is cut off"));
    }
    if !header.matches(&payload) {
        return Err(damaged("the frame's checksum does not match"));
    }
    if header.first_seq != place.next_seq {
        return Err(damaged(&format!("the frame begins with seq {}, not {}", header.first_seq, place.next_seq)));
    }
    Ok(Some((header, payload)))
}

fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], offset + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}

/// The writing end of the log.
pub(super) struct Writer {
    directory: PathBuf,
    log_id: Arc<str>,
    file: File,
    place: Place,
    encoder: Encoder,
}

impl Writer {
    /// Where the next frame goes.
    pub(super) fn place(&self) -> Place {
        self.place
    }

    /// Whether the segment is full and the next frame should open a new one.
    pub(super) fn is_full(&self) -> bool {
        self.place.offset >= SEGMENT_LEN
    }

    /// Appends a frame and makes it durable.
    ///
    /// After an error nothing more may be appended: what a failed sync has left on the disk is unknown.
    pub(super) fn append(&mut self, frame: &Frame) -> io::Result<Place> {
        let bytes = self.encoder.encode(frame)?;
        if let Err(error) = self.file.write_all(&bytes) {
            // A full disk: take the torn part back, so that the log ends with a whole frame.
            let _ = self.file.set_len(self.place.offset);
            return Err(error);
        }
        self.file.sync_data()?;
        self.place.offset += bytes.len() as u64;
        self.place.next_seq += frame.records.len() as u64;
        Ok(self.place)
    }

    /// Opens the next segment. Its first frame must be the states of all streams.
    pub(super) fn roll(&mut self) -> io::Result<u64> {
        let first_seq = self.place.next_seq;
        self.file = create(&self.directory, &self.log_id, first_seq)?;
        self.place = Place::start_of(first_seq);
        Ok(first_seq)
    }
}

fn create(directory: &Path, log_id: &str, first_seq: u64) -> io::Result<File> {
    let path = segment_path(directory, first_seq);
    let mut file = File::options().create(true).truncate(true).write(true).open(&path)?;
    file.write_all(&segment_header(log_id, first_seq))?;
    file.sync_all()?;
    sync_directory(directory)?;
    Ok(file)
}

/// Opens the log for writing. Every frame from `from` on is checked and those behind `applied` are handed to `replay`.
///
/// `passed` is the highest seq that a cursor has passed: a bad frame at the very end is cut off as torn only if neither
/// the store nor a cursor has been there.
pub(super) fn recover(
    directory: &Path,
    log_id: &Arc<str>,
    applied: Option<Place>,
    oldest_needed: u64,
    passed: u64,
    mut replay: impl FnMut(Frame, Place) -> Result<(), OpenError>,
) -> Result<(Writer, Vec<u64>), OpenError> {
    let failed = |operation: &'static str, path: &Path| {
        let path = path.to_path_buf();
        move |source: io::Error| OpenError::Directory { operation, path, source }
    };
    let mut segments = segments_in(directory).map_err(failed("read", directory))?;
    let encoder = Encoder::new().map_err(failed("open", directory))?;
    let lost = |segment: u64, problem: &str| OpenError::Damaged {
        file: segment_path(directory, segment),
        offset: 0,
        problem: problem.into(),
    };
    if let Some(applied) = applied {
        if !segments.contains(&applied.segment) {
            return Err(lost(applied.segment, "the segment is missing, and the store was built on it"));
        }
    } else if segments.first().is_some_and(|first| *first != 1) {
        return Err(lost(1, "the log does not begin with its first segment, and the store is empty"));
    }
    // A crash while a segment was being made leaves a last one without a whole header: nothing was ever in it.
    if let Some(&last) = segments.last() {
        let path = segment_path(directory, last);
        let len = fs::metadata(&path).map_err(failed("read", &path))?.len();
        if len < SEGMENT_HEADER_LEN as u64 && applied.is_none_or(|applied| applied.segment < last) && passed < last {
            fs::remove_file(&path).map_err(failed("remove", &path))?;
            segments.pop();
        }
    }
    if segments.is_empty() {
        let file = create(directory, log_id, 1).map_err(failed("write to", directory))?;
        let place = Place::start_of(1);
        return Ok((Writer { directory: directory.into(), log_id: log_id.clone(), file, place, encoder }, vec![1]));
    }

    let replay_from = applied.unwrap_or(Place::start_of(1));
    let needed = oldest_needed.min(replay_from.next_seq);
    let first = segments.iter().rposition(|segment| *segment <= needed).unwrap_or(0);
    let mut place = Place::start_of(segments[first]);
    for (index, &segment) in segments.iter().enumerate().skip(first) {
        let is_last = index + 1 == segments.len();
        let path = segment_path(directory, segment);
        let damaged =
            |offset, problem: &str| OpenError::Damaged { file: path.clone(), offset, problem: problem.into() };
        if place.next_seq != segment {
            return Err(damaged(0, &format!("the segment before it ends with seq {}", place.next_seq - 1)));
        }
        let file = File::options().read(true).write(is_last).open(&path).map_err(failed("open", &path))?;
        let mut header = [0; SEGMENT_HEADER_LEN];
        read_up_to(&file, &mut header, 0).map_err(failed("read", &path))?;
        if header != segment_header(log_id, segment) {
            return Err(damaged(0, "the segment's header is not the one that was written"));
        }
        place = Place::start_of(segment);
        loop {
            match read_frame(&file, &path, place) {
                Ok(None) => break,
                Ok(Some((header, payload))) => {
                    let at = place;
                    place.offset += header.frame_len();
                    place.next_seq = header.next_seq();
                    if at >= replay_from {
                        let frame = frame::decode(log_id, &header, &payload)
                            .map_err(|error| damaged(at.offset, &format!("the frame cannot be read: {error}")))?;
                        replay(frame, place)?;
                    }
                }
                Err(error) => {
                    let torn = is_last
                        && place >= replay_from
                        && passed < place.next_seq
                        && !a_frame_follows(&file, place.offset).map_err(failed("read", &path))?;
                    if !torn {
                        return Err(error);
                    }
                    tracing::warn!(file = %path.display(), offset = place.offset, "cut off a torn write at the end of the log");
                    file.set_len(place.offset).and_then(|()| file.sync_all()).map_err(failed("write to", &path))?;
                    break;
                }
            }
        }
        if place < replay_from && replay_from.segment == segment {
            return Err(damaged(place.offset, "the file ends here, but the store was built on more of it"));
        }
        if is_last {
            let mut file = file;
            io::Seek::seek(&mut file, io::SeekFrom::Start(place.offset)).map_err(failed("open", &path))?;
            if passed >= place.next_seq {
                return Err(damaged(
                    place.offset,
                    &format!("the log ends here, but a sink has acknowledged seq {passed}"),
                ));
            }
            let writer = Writer { directory: directory.into(), log_id: log_id.clone(), file, place, encoder };
            return Ok((writer, segments));
        }
    }
    unreachable!("the last segment returns")
}

/// Whether a whole frame stands anywhere behind `offset`: then what is there is not the end of the log.
fn a_frame_follows(file: &File, offset: u64) -> io::Result<bool> {
    let len = file.metadata()?.len();
    let mut rest = vec![0; usize::try_from(len.saturating_sub(offset)).unwrap_or(usize::MAX)];
    let read = read_up_to(file, &mut rest, offset)?;
    rest.truncate(read);
    Ok((1..rest.len()).any(|at| {
        Header::parse(&rest[at..]).is_some_and(|header| {
            let payload = at + HEADER_LEN..at + HEADER_LEN + header.payload_len as usize;
            rest.get(payload).is_some_and(|payload| header.matches(payload))
        })
    }))
}

#[cfg(test)]
mod tests {
    use kubetide_sink::{Record, sample};

    use super::*;
    use crate::change::Managed;

    fn record(seq: u64) -> Record {
        sample::record(seq, format!("{{\"seq\":{seq}}}"))
    }

    fn log_id() -> Arc<str> {
        sample::LOG_ID.into()
    }

    /// What opening the log found: the records and where the next frame goes.
    type Opened = Result<(Vec<Record>, Place), OpenError>;

    fn open(directory: &Path, applied: Option<Place>, passed: u64) -> Opened {
        let mut records = Vec::new();
        let (writer, _) = recover(directory, &log_id(), applied, 1, passed, |frame, _| {
            records.extend(frame.records);
            Ok(())
        })?;
        Ok((records, writer.place()))
    }

    /// Two segments: 1..=4 in two frames, 5..=9 in two frames. Returns the places behind each frame.
    fn write_log(directory: &Path) -> Vec<Place> {
        let (mut writer, _) = recover(directory, &log_id(), None, 1, 0, |_, _| Ok(())).unwrap();
        let mut places = Vec::new();
        for (first, last) in [(1, 2), (3, 4), (5, 7), (8, 9)] {
            if first == 5 {
                writer.roll().unwrap();
            }
            let records: Vec<_> = (first..=last).map(record).collect();
            places.push(
                writer
                    .append(&Frame {
                        first_seq: first,
                        managed: vec![Managed::default(); records.len()],
                        records,
                        ..Frame::default()
                    })
                    .unwrap(),
            );
        }
        places
    }

    fn all_records() -> Vec<Record> {
        (1..=9).map(record).collect()
    }

    #[test]
    fn what_was_appended_comes_back_and_the_log_goes_on_behind_it() {
        let directory = tempfile::tempdir().unwrap();
        let places = write_log(directory.path());
        assert_eq!(segments_in(directory.path()).unwrap(), [1, 5]);
        let (records, place) = open(directory.path(), None, 0).unwrap();
        assert_eq!((records, place), (all_records(), places[3]));
        let (replayed, _) = open(directory.path(), Some(places[1]), 4).unwrap();
        assert_eq!(replayed, all_records()[4..], "only what the store has missed is replayed");
    }

    #[test]
    fn every_truncation_is_cut_as_torn_or_refused_and_never_loses_what_was_built_on() {
        let directory = tempfile::tempdir().unwrap();
        let places = write_log(directory.path());
        let path = segment_path(directory.path(), 5);
        let whole = fs::read(&path).unwrap();
        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            // The store has applied everything, or a sink has acknowledged it: then it is not a torn write.
            assert!(open(directory.path(), Some(places[3]), 0).is_err(), "{len}");
            assert!(open(directory.path(), Some(places[1]), 9).is_err(), "{len}");
            fs::write(&path, &whole[..len]).unwrap();
            let (records, _) = open(directory.path(), Some(places[1]), 4).unwrap();
            let expected = if (len as u64) < places[2].offset { 4 } else { 7 };
            assert_eq!(records, all_records()[4..expected], "cut at {len}");
        }
        let first = segment_path(directory.path(), 1);
        let whole = fs::read(&first).unwrap();
        for len in 0..whole.len() {
            fs::write(&first, &whole[..len]).unwrap();
            assert!(open(directory.path(), None, 0).is_err(), "a segment in the middle is never cut: {len}");
        }
    }

    #[test]
    fn every_flipped_bit_is_refused_by_file_and_offset_or_cut_with_the_last_frame() {
        let directory = tempfile::tempdir().unwrap();
        let places = write_log(directory.path());
        for segment in [1, 5] {
            let path = segment_path(directory.path(), segment);
            let whole = fs::read(&path).unwrap();
            for bit in 0..whole.len() * 8 {
                let mut bytes = whole.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                fs::write(&path, &bytes).unwrap();
                let refused = open(directory.path(), Some(places[3]), 9);
                assert!(
                    matches!(&refused, Err(OpenError::Damaged { file, .. }) if *file == path),
                    "bit {bit} of {segment}"
                );
                assert_eq!(fs::read(&path).unwrap(), bytes, "what is refused is left as it is");
                match open(directory.path(), None, 0) {
                    Err(OpenError::Damaged { .. }) => {}
                    Err(other) => panic!("{other}"),
                    Ok((records, _)) => {
                        assert!(segment == 5 && bit as u64 / 8 >= places[2].offset, "bit {bit} of {segment}");
                        assert_eq!(records, all_records()[..7]);
                    }
                }
                fs::write(&path, &whole).unwrap();
            }
        }
        assert_eq!(open(directory.path(), None, 0).unwrap().0, all_records());
    }

    #[test]
    fn a_missing_segment_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let places = write_log(directory.path());
        fs::remove_file(segment_path(directory.path(), 5)).unwrap();
        assert!(open(directory.path(), Some(places[3]), 0).is_err());
        assert!(open(directory.path(), Some(places[1]), 9).is_err());
        fs::remove_file(segment_path(directory.path(), 1)).unwrap();
        assert!(open(directory.path(), Some(places[1]), 0).is_err());
    }

    #[test]
    fn a_segment_that_was_only_being_made_is_made_again() {
        let directory = tempfile::tempdir().unwrap();
        let places = write_log(directory.path());
        fs::write(segment_path(directory.path(), 10), b"KTSEG").unwrap();
        let (records, place) = open(directory.path(), Some(places[3]), 9).unwrap();
        assert_eq!((records, place), (vec![], places[3]));
    }
}
