//! Who gives way in a one-liner that is too long: how many columns each part has, and how an edit looks in them.

use anstyle::AnsiColor;

use super::{
    super::{
        diff::brief,
        edit::{Edit, Known, pointed},
        span::{Span, cut_end, cut_middle, cut_to_difference, shown, width},
    },
    STREAM_WIDTH, VALUE_AT_MOST,
};

/// Where there is not room for everything, a longer name of a stream is cut in the middle first.
const STREAM_AT_MOST: usize = 28;
/// A name is not cut below this while something else can be.
const NAME_AT_LEAST: usize = 16;
/// A name is not cut below this at all, if it has an edit behind it.
const NAME_AT_THE_VERY_LEAST: usize = 12;
/// A path that is cut to this still has its first and its last field.
const PATH_AT_LEAST: usize = 10;
/// Enough for the end of an image, a count, a date.
const VALUE_AT_LEAST: usize = 12;
/// `…:v1.2.4`
const VALUE_AT_THE_VERY_LEAST: usize = 8;

/// An edit in words: `  spec.replicas 2 → 3`.
pub(super) struct Edited {
    /// What stands before the path: two spaces, and a sign if something came or went.
    lead: &'static str,
    path: String,
    old: Option<String>,
    arrow: &'static str,
    new: Option<String>,
}

impl Edited {
    pub(super) fn new(edit: &Edit) -> Self {
        let path = shown(&pointed(&edit.path));
        let value = |value| Some(brief(value));
        let (lead, old, arrow, new) = match (&edit.old, &edit.new) {
            (Known::Value(was), Known::Value(is)) => ("  ", value(was), " → ", value(is)),
            (Known::Unknown, Known::Value(is)) => ("  ", None, "→ ", value(is)),
            (Known::Nothing, Known::Value(is)) => ("  +", None, "", value(is)),
            (Known::Value(was), Known::Nothing) => ("  -", value(was), "", None),
            (_, Known::Nothing) => ("  -", None, "", None),
            // There is nothing to say but where.
            (_, Known::Unknown) => ("  ", None, "", None),
        };
        Self { lead, path, old, arrow, new }
    }

    /// What is between its parts.
    fn punctuation(&self) -> usize {
        let space = usize::from(self.old.is_some() || self.new.is_some());
        width(self.lead) + space + width(self.arrow)
    }

    pub(super) fn spans(&self, shares: &Shares) -> Vec<Span> {
        let Self { lead, path, old, arrow, new } = self;
        let path = cut_path(path, shares.path);
        let (red, green) = (AnsiColor::Red.on_default(), AnsiColor::Green.on_default());
        let head = match *lead {
            "  +" => Span::new(green, format!("{lead}{path}")),
            "  -" => Span::new(red, format!("{lead}{path}")),
            _ => Span::plain(format!("{lead}{path}")),
        };
        let (was, is) = match (old, new) {
            (Some(old), Some(new)) => {
                let common = old.chars().zip(new.chars()).take_while(|(old, new)| old == new).count();
                let was = cut_to_difference(old, common, shares.old);
                (Some(was), Some(cut_to_difference(new, common, shares.new)))
            }
            _ => {
                let alone = |value: &Option<String>, room| value.as_ref().map(|value| cut_middle(value, room));
                (alone(old, shares.old), alone(new, shares.new))
            }
        };
        let mut spans = vec![head];
        spans.extend((was.is_some() || is.is_some()).then(|| Span::plain(" ")));
        spans.extend(was.map(|was| Span::new(red, was)));
        spans.extend((!arrow.is_empty()).then(|| Span::faint(*arrow)));
        spans.extend(is.map(|is| Span::new(green, is)));
        spans
    }
}

/// The middle of a path tells least, and its last field most: `spe….image`.
fn cut_path(path: &str, room: usize) -> String {
    if width(path) <= room {
        return path.to_owned();
    }
    let head: String = path.chars().take(room / 3).collect();
    let count = path.chars().count();
    let mut tail = room.saturating_sub(room / 3 + 1);
    loop {
        let cut = format!("{head}…{}", path.chars().skip(count.saturating_sub(tail)).collect::<String>());
        if width(&cut) <= room || tail == 0 {
            return cut_end(&cut, room);
        }
        tail -= 1;
    }
}

/// How many columns each part of a line has.
pub(super) struct Shares {
    pub(super) stream: usize,
    pub(super) name: usize,
    path: usize,
    old: usize,
    new: usize,
    punctuation: usize,
}

impl Shares {
    /// What each would like to have.
    pub(super) fn of(stream: &str, subject: &str, edit: Option<&Edited>) -> Self {
        let value = |value: Option<&String>| value.map_or(0, |text| width(text));
        Self {
            stream: width(stream),
            name: width(subject),
            path: edit.map_or(0, |edit| width(&edit.path)),
            old: value(edit.and_then(|edit| edit.old.as_ref())),
            new: value(edit.and_then(|edit| edit.new.as_ref())),
            punctuation: edit.map_or(0, Edited::punctuation),
        }
    }

    /// Takes from each in turn, down to its least, until all fit: from very long values and streams, the middle of the name,
    /// the middle of the path, and then from what is left of the values. Whether what differs was spared.
    pub(super) fn fit(&mut self, room: usize) -> bool {
        self.share_values(room, VALUE_AT_MOST);
        self.stream -= self.over(room).min(self.stream.saturating_sub(STREAM_AT_MOST));
        // Versions and counts are short and stay whole; edits may be long, and then they share with the name.
        let name_at_least = if self.path == 0 { 0 } else { NAME_AT_LEAST };
        self.name -= self.over(room).min(self.name.saturating_sub(name_at_least));
        self.path -= self.over(room).min(self.path.saturating_sub(PATH_AT_LEAST));
        let is_spared = self.over(room) == 0;
        self.share_values(room, VALUE_AT_LEAST);
        self.stream -= self.over(room).min(self.stream.saturating_sub(STREAM_WIDTH));
        self.share_values(room, VALUE_AT_THE_VERY_LEAST);
        self.name -= self.over(room).min(self.name.saturating_sub(NAME_AT_THE_VERY_LEAST));
        is_spared
    }

    /// Both values are cut to one length, so far as that is needed.
    fn share_values(&mut self, room: usize, least: usize) {
        let target = (self.old + self.new).saturating_sub(self.over(room));
        let short = self.old.min(self.new);
        let most = target.saturating_sub(short).max(target / 2).max(least);
        (self.old, self.new) = (self.old.min(most), self.new.min(most));
    }

    fn over(&self, room: usize) -> usize {
        self.sum().saturating_sub(room)
    }

    fn sum(&self) -> usize {
        self.stream + self.name + self.path + self.old + self.new + self.punctuation
    }
}
