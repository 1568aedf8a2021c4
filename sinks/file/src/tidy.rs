//! What becomes of files that were put aside: the oldest go, the others are compressed, and a link leads to the newest.
//!
//! All of it can be done again from any state that a crash has left. It is done on a thread of its own, which is joined, and which
//! gives up when its owner goes: the next start begins anew. Its failures are told and not more: no record is lost by them.

use std::{
    fs::{self, File},
    io::{self, Read as _, Write},
    os::unix::fs::symlink,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{Builder, JoinHandle},
};

use tracing::warn;

use crate::{
    Compression, Rotate,
    place::{Place, Rotated, sync_directory},
};

/// The thread that tidies up. Dropped: stopped and joined.
#[derive(Debug)]
pub(crate) struct Tidying {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Tidying {
    pub(crate) fn start(place: Place, rotate: &Rotate) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (seen, rotate) = (Arc::clone(&stop), rotate.clone());
        let tidy = move || {
            let tidied = Tidy { place: &place, rotate: &rotate, stop: &seen }.all();
            if let Err(error) = tidied
                && !seen.load(Ordering::Relaxed)
            {
                let path = place.current();
                warn!(path = %path.display(), %error, "cannot tidy up rotated files, trying again with the next one");
            }
        };
        Ok(Self { stop, thread: Some(Builder::new().name("file-tidy".into()).spawn(tidy)?) })
    }

    /// Until it is done.
    pub(crate) fn wait(mut self) {
        self.join();
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            // What has panicked was told by the hook for panics, and comes again.
            let _ = thread.join();
        }
    }
}

impl Drop for Tidying {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.join();
    }
}

struct Tidy<'a> {
    place: &'a Place,
    rotate: &'a Rotate,
    stop: &'a AtomicBool,
}

impl Tidy<'_> {
    fn all(&self) -> io::Result<()> {
        for part in self.place.parts()? {
            fs::remove_file(part)?;
        }
        // Each with those of other compression that hold the same.
        let mut files = self.place.rotated()?;
        files.reverse();
        let newest_first: Vec<&[Rotated]> = files.chunk_by(Rotated::is_same).collect();
        let keep = if self.rotate.keep == 0 { usize::MAX } else { self.rotate.keep as usize };
        let (kept, too_many) = newest_first.split_at(keep.min(newest_first.len()));
        for rotated in too_many.iter().copied().flatten() {
            fs::remove_file(self.place.path(rotated))?;
        }
        let Some(newest) = kept.first().map(|same| &same[0]) else { return Ok(()) };
        // At once: compressing takes its time.
        let mut linked = self.link(newest);
        for same in kept.iter().rev() {
            // While it is there, it is the truth: others of the same are from before a crash.
            let Some(plain) = same.iter().find(|rotated| rotated.compression == Compression::None) else { continue };
            if let Err(error) = self.finish(plain, same, newest) {
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                linked = Err(error);
            }
        }
        linked
    }

    /// Compresses it, if that is asked for, and removes what holds the same.
    fn finish(&self, plain: &Rotated, same: &[Rotated], newest: &Rotated) -> io::Result<()> {
        let finished = plain.with(self.rotate.compression);
        if finished != *plain {
            self.compress(plain, &finished)?;
        }
        if plain.is_same(newest) {
            self.link(&finished)?;
        }
        for other in same.iter().filter(|other| **other != finished) {
            fs::remove_file(self.place.path(other))?;
        }
        sync_directory(&self.place.directory)
    }

    /// The name of the finished file is there when all of it is, durably.
    fn compress(&self, plain: &Rotated, finished: &Rotated) -> io::Result<()> {
        let (from, to) = (self.place.path(plain), self.place.path(finished));
        let part = self.place.unfinished(&self.place.name(finished));
        let mut file = File::create(&part)?;
        file.set_permissions(fs::metadata(&from)?.permissions())?;
        match finished.compression {
            Compression::None => self.copy(&from, &mut file)?,
            Compression::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(&mut file, flate2::Compression::default());
                self.copy(&from, &mut encoder)?;
                encoder.finish()?;
            }
            Compression::Zstd => {
                let mut encoder = zstd::Encoder::new(&mut file, zstd::DEFAULT_COMPRESSION_LEVEL)?;
                encoder.include_checksum(true)?;
                self.copy(&from, &mut encoder)?;
                encoder.finish()?;
            }
        }
        file.sync_all()?;
        fs::rename(part, to)?;
        sync_directory(&self.place.directory)
    }

    fn copy(&self, from: &Path, to: &mut impl Write) -> io::Result<()> {
        let mut from = File::open(from)?;
        let mut block = vec![0; 256 * 1024];
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            match from.read(&mut block)? {
                0 => return Ok(()),
                read => to.write_all(&block[..read])?,
            }
        }
    }

    /// Lets the link lead to this file. What is no link is left alone.
    fn link(&self, to: &Rotated) -> io::Result<()> {
        let (link, name) = (self.place.latest(), self.place.name(to));
        match fs::read_link(&link) {
            Ok(there) if there == Path::new(&name) => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let part = self.place.unfinished(&link.file_name().unwrap_or_default().to_string_lossy());
        symlink(name, &part)?;
        fs::rename(part, link)?;
        sync_directory(&self.place.directory)
    }
}

#[cfg(test)]
mod tests;
