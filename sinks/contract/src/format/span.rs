//! Pieces of a line: how wide they are on a terminal, how they are cut, and what must not reach it.
//!
//! Names and values come from the cluster's users. What would move the cursor, change colours or turn the direction of
//! writing is shown as a mark instead.

use anstyle::Style as Ansi;
use unicode_width::UnicodeWidthChar as _;

use super::Style;

/// A piece of a line in one style.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) style: Ansi,
    pub(super) text: String,
}

impl Span {
    /// The text must have been made harmless by [`shown`].
    pub(super) fn new(style: Ansi, text: impl Into<String>) -> Self {
        Self { style, text: text.into() }
    }

    pub(super) fn plain(text: impl Into<String>) -> Self {
        Self::new(Ansi::new(), text)
    }

    pub(super) fn faint(text: impl Into<String>) -> Self {
        Self::new(Ansi::new().dimmed(), text)
    }
}

/// How many columns they take together.
pub(super) fn width_of(spans: &[Span]) -> usize {
    spans.iter().map(|span| width(&span.text)).sum()
}

/// Cuts off what is behind `room` columns.
pub(super) fn cut_spans(spans: Vec<Span>, room: usize) -> Vec<Span> {
    if width_of(&spans) <= room {
        return spans;
    }
    let mut left = room;
    let mut kept = Vec::new();
    for mut span in spans {
        let wide = width(&span.text);
        if wide < left {
            left -= wide;
            kept.push(span);
            continue;
        }
        // The mark stands for this piece and for all behind it.
        span.text = cut_end(&format!("{}…", span.text), left);
        kept.push(span);
        break;
    }
    kept
}

/// Writes them, with their colours if wanted.
pub(super) fn paint(spans: &[Span], style: Style, out: &mut String) {
    for Span { style: ansi, text } in spans {
        if style == Style::Plain || *ansi == Ansi::new() || text.is_empty() {
            out.push_str(text);
        } else {
            out.push_str(&format!("{ansi}{text}{ansi:#}"));
        }
    }
}

/// How many columns a text takes on a terminal.
pub fn width(text: &str) -> usize {
    text.chars().map(columns).sum()
}

fn columns(c: char) -> usize {
    c.width().unwrap_or(1)
}

/// The text in at most `room` columns, with a mark where its end is cut off.
pub fn cut_end(text: &str, room: usize) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    if room == 0 {
        return String::new();
    }
    let mut kept = beginning(text, room - 1).to_owned();
    kept.push('…');
    kept
}

/// The text in at most `room` columns, with a mark where its middle is left out: the two ends of a name tell most.
pub fn cut_middle(text: &str, room: usize) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    if room < 4 {
        return cut_end(text, room);
    }
    let head = beginning(text, room / 2);
    let tail = room - 1 - width(head);
    let mut from = text.len();
    let mut wide = 0;
    for (at, c) in text.char_indices().rev() {
        wide += columns(c);
        if wide > tail {
            break;
        }
        from = at;
    }
    format!("{head}…{}", &text[from..])
}

/// The text in at most `room` columns: of its first `common` characters, which another text has too, goes what has to; then
/// its end.
pub(super) fn cut_to_difference(text: &str, common: usize, room: usize) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    // With the mark that stands for it.
    let over = width(text) + 1 - room;
    let (mut gone, mut from) = (0, 0);
    for c in text.chars().take(common) {
        if gone >= over {
            break;
        }
        gone += columns(c);
        from += c.len_utf8();
    }
    if from == 0 { cut_end(text, room) } else { cut_end(&format!("…{}", &text[from..]), room) }
}

fn beginning(text: &str, room: usize) -> &str {
    let mut wide = 0;
    let end = text.char_indices().find(|(_, c)| {
        wide += columns(*c);
        wide > room
    });
    end.map_or(text, |(at, _)| &text[..at])
}

/// The text without anything that a terminal would act on.
pub fn shown(text: &str) -> String {
    text.chars().map(|c| if acts(c) { '\u{fffd}' } else { c }).collect()
}

/// Control characters, line and paragraph ends, and those that turn or hide what is written.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{61c}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_characters_count_twice_and_a_cut_never_exceeds_its_room() {
        assert_eq!(width("日本"), 4);
        assert_eq!(cut_end("日本語", 5), "日本…");
        assert_eq!(cut_end("日本語", 4), "日…");
        assert_eq!(cut_middle("default/web-6d4b75cb6d-hwn7s", 15), "default…d-hwn7s");
        for text in ["日本語のなまえ", "default/web-6d4b75cb6d-hwn7s", "ä", ""] {
            for room in 0..30 {
                assert!(width(&cut_middle(text, room)) <= room, "{text} {room}");
                assert!(width(&cut_end(text, room)) <= room, "{text} {room}");
            }
        }
    }

    #[test]
    fn what_a_terminal_acts_on_is_shown_as_a_mark() {
        assert_eq!(shown("a\u{1b}[2Jb\n\u{202e}c\u{9b}d"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}c\u{fffd}d");
    }

    #[test]
    fn pieces_are_cut_together_at_the_end() {
        let spans = vec![Span::plain("abc"), Span::faint("def"), Span::plain("ghi")];
        let cut = |room| cut_spans(spans.clone(), room).iter().map(|span| span.text.clone()).collect::<String>();
        assert_eq!(cut(9), "abcdefghi");
        assert_eq!(cut(8), "abcdefg…");
        assert_eq!(cut(6), "abcde…");
        assert_eq!(cut(3), "ab…");
        assert_eq!(cut(0), "");
    }
}
