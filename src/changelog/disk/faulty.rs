//! A disk in memory that fails in every way that a real one may, for tests.
//!
//! It keeps what is durable apart from what was only written. A crash leaves any part of the rest, in any order, torn at any
//! byte or sector; a name that was not synced may be there or not. It can be full, cut writes short, and refuse to sync.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

use rand::{RngExt as _, seq::SliceRandom as _};

use super::{Access, Disk, DiskFile};

/// What a disk writes as a whole, or so it is said.
const SECTOR: usize = 512;

/// The disk. Clones are the same disk.
#[derive(Clone, Default)]
pub(in crate::changelog) struct FaultyDisk(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    files: Vec<Content>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    unsynced_names: Vec<NameChange>,
    /// Raised by whatever ends the process: files that it had open are closed then.
    life: u64,
    faults: Faults,
    interrupted: bool,
}

/// What goes wrong, until it is set otherwise.
#[derive(Clone, Debug, Default)]
pub(in crate::changelog) struct Faults {
    /// How many bytes files may still grow by before the disk is full.
    pub(in crate::changelog) space: Option<u64>,
    /// The most that one write takes. Every other one is interrupted before it takes anything.
    pub(in crate::changelog) short_writes: Option<usize>,
    /// Syncing a file fails, and what it should have made durable may never be.
    pub(in crate::changelog) failing_syncs: bool,
    /// Syncing a directory fails.
    pub(in crate::changelog) failing_directory_syncs: bool,
    /// Cutting a file fails.
    pub(in crate::changelog) failing_cuts: bool,
}

#[derive(Default)]
struct Content {
    durable: Vec<u8>,
    /// What a reader sees.
    live: Vec<u8>,
    unsynced: Vec<Step>,
    /// What a failed sync has left behind: no later sync makes it durable.
    doomed: Vec<Step>,
}

#[derive(Clone)]
enum Step {
    Write { offset: usize, bytes: Vec<u8> },
    SetLen(usize),
}

enum NameChange {
    Made(PathBuf, usize),
    Removed(PathBuf),
}

impl NameChange {
    fn path(&self) -> &Path {
        match self {
            Self::Made(path, _) | Self::Removed(path) => path,
        }
    }

    fn apply(&self, names: &mut BTreeMap<PathBuf, usize>) {
        match self {
            Self::Made(path, file) => names.insert(path.clone(), *file),
            Self::Removed(path) => names.remove(path),
        };
    }
}

impl Step {
    fn apply(&self, content: &mut Vec<u8>) {
        match self {
            Self::SetLen(len) => content.resize(*len, 0),
            Self::Write { offset, bytes } => {
                let end = offset + bytes.len();
                content.resize(content.len().max(end), 0);
                content[*offset..end].copy_from_slice(bytes);
            }
        }
    }

    /// What a crash leaves of it.
    fn apply_torn(&self, content: &mut Vec<u8>, rng: &mut impl rand::Rng) {
        let Self::Write { offset, bytes } = self else { return self.apply(content) };
        let part =
            |range: std::ops::Range<usize>| Self::Write { offset: offset + range.start, bytes: bytes[range].to_vec() };
        match rng.random_range(0..5) {
            0 | 1 => self.apply(content),
            2 => part(0..rng.random_range(0..=bytes.len())).apply(content),
            3 => part(0..(rng.random_range(0..=bytes.len()) / SECTOR * SECTOR)).apply(content),
            // The file has grown already, but only some of its sectors are there: the others read as zeros.
            _ => {
                content.resize(content.len().max(offset + bytes.len()), 0);
                let mut at = 0;
                while at < bytes.len() {
                    let next = (at + SECTOR - (offset + at) % SECTOR).min(bytes.len());
                    if rng.random() {
                        part(at..next).apply(content);
                    }
                    at = next;
                }
            }
        }
    }
}

impl FaultyDisk {
    /// To hand out where a disk is asked for.
    pub(in crate::changelog) fn shared(&self) -> Arc<dyn Disk> {
        Arc::new(self.clone())
    }

    /// Sets what goes wrong from now on.
    pub(in crate::changelog) fn set(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// The process ends, the machine goes on: nothing is lost, and nothing is made durable either.
    pub(in crate::changelog) fn kill(&self) {
        let mut state = self.state();
        state.life += 1;
        state.faults = Faults::default();
    }

    /// The machine loses its power, and comes back.
    pub(in crate::changelog) fn crash(&self, rng: &mut impl rand::Rng) {
        self.kill();
        let state = &mut *self.state();
        for change in std::mem::take(&mut state.unsynced_names) {
            if rng.random() {
                change.apply(&mut state.durable_names);
            }
        }
        state.names = state.durable_names.clone();
        for content in &mut state.files {
            let mut steps = std::mem::take(&mut content.doomed);
            steps.append(&mut content.unsynced);
            steps.retain(|_| rng.random_bool(0.7));
            if rng.random() {
                steps.shuffle(rng);
            }
            for step in steps {
                step.apply_torn(&mut content.durable, rng);
            }
            content.live = content.durable.clone();
        }
    }

    /// A file as a reader sees it.
    pub(in crate::changelog) fn read(&self, path: &Path) -> Vec<u8> {
        let state = self.state();
        state.files[state.names[path]].live.clone()
    }

    /// Puts a durable file there, whatever was there before.
    pub(in crate::changelog) fn put(&self, path: &Path, bytes: &[u8]) {
        let state = &mut *self.state();
        let content = Content { durable: bytes.to_vec(), live: bytes.to_vec(), ..Content::default() };
        if let Some(file) = state.names.get(path) {
            state.files[*file] = content;
            return;
        }
        state.files.push(content);
        state.names.insert(path.into(), state.files.len() - 1);
        state.durable_names.insert(path.into(), state.files.len() - 1);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn handle(&self, state: &State, file: usize, access: Access) -> Box<dyn DiskFile> {
        Box::new(Handle { disk: self.clone(), file, life: state.life, access })
    }
}

impl Disk for FaultyDisk {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.state();
        if state.faults.space == Some(0) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.files.push(Content::default());
        let file = state.files.len() - 1;
        let change = NameChange::Made(path.into(), file);
        change.apply(&mut state.names);
        state.unsynced_names.push(change);
        Ok(self.handle(&state, file, Access::Write))
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn DiskFile>> {
        let state = self.state();
        let file = *state.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.handle(&state, file, access))
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let state = self.state();
        let here = state.names.keys().filter(|path| path.parent() == Some(directory));
        Ok(here.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let state = &mut *self.state();
        let file = *state.names.get(from).ok_or(io::ErrorKind::NotFound)?;
        for change in [NameChange::Made(to.into(), file), NameChange::Removed(from.into())] {
            change.apply(&mut state.names);
            state.unsynced_names.push(change);
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        let file = state.names.remove(path).ok_or(io::ErrorKind::NotFound)?;
        let len = state.files[file].live.len() as u64;
        state.faults.space = state.faults.space.map(|space| space + len);
        state.unsynced_names.push(NameChange::Removed(path.into()));
        Ok(())
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        let state = &mut *self.state();
        if state.faults.failing_directory_syncs {
            return Err(io::Error::other("injected: directory sync"));
        }
        let (synced, rest) = std::mem::take(&mut state.unsynced_names)
            .into_iter()
            .partition(|change| change.path().parent() == Some(directory));
        state.unsynced_names = rest;
        let synced: Vec<NameChange> = synced;
        synced.iter().for_each(|change| change.apply(&mut state.durable_names));
        Ok(())
    }
}

struct Handle {
    disk: FaultyDisk,
    file: usize,
    life: u64,
    access: Access,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "file {}", self.file)
    }
}

impl Handle {
    fn state(&self, access: Access) -> MutexGuard<'_, State> {
        let state = self.disk.state();
        assert_eq!(state.life, self.life, "a file was used by a process that has ended");
        assert!(access == Access::Read || self.access == Access::Write, "a file was opened for reading only");
        state
    }
}

impl DiskFile for Handle {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.state(Access::Read);
        let live = &state.files[self.file].live;
        let from = live.get(offset as usize..).unwrap_or_default();
        let len = from.len().min(buffer.len());
        buffer[..len].copy_from_slice(&from[..len]);
        Ok(len)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let state = &mut *self.state(Access::Write);
        let faults = &mut state.faults;
        let content = &mut state.files[self.file];
        let mut len = bytes.len();
        if let Some(most) = faults.short_writes {
            state.interrupted = !state.interrupted;
            if state.interrupted {
                return Err(io::ErrorKind::Interrupted.into());
            }
            len = len.min(most);
        }
        let offset = offset as usize;
        if let Some(space) = &mut faults.space {
            let free = (content.live.len().max(offset) - offset) as u64 + *space;
            len = len.min(free as usize);
            if len == 0 && !bytes.is_empty() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            *space -= ((offset + len).saturating_sub(content.live.len())) as u64;
        }
        let step = Step::Write { offset, bytes: bytes[..len].to_vec() };
        step.apply(&mut content.live);
        content.unsynced.push(step);
        Ok(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        let state = &mut *self.state(Access::Write);
        let content = &mut state.files[self.file];
        let mut steps = std::mem::take(&mut content.unsynced);
        if state.faults.failing_syncs {
            content.doomed.append(&mut steps);
            return Err(io::Error::other("injected: sync"));
        }
        steps.iter().for_each(|step| step.apply(&mut content.durable));
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let state = &mut *self.state(Access::Write);
        if state.faults.failing_cuts {
            return Err(io::Error::other("injected: cut"));
        }
        let content = &mut state.files[self.file];
        let given_back = (content.live.len() as u64).saturating_sub(len);
        state.faults.space = state.faults.space.map(|space| space + given_back);
        let step = Step::SetLen(len as usize);
        step.apply(&mut content.live);
        content.unsynced.push(step);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.state(Access::Read).files[self.file].live.len() as u64)
    }
}
