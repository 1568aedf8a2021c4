//! The screen: titles, captions, records and figures, in 80 columns; plain text where it is no terminal.

use std::io::{self, IsTerminal as _, Write as _};

use anstyle::{AnsiColor, Style as Ansi};
use anyhow::Context as _;
use kubetide_sink::format::{Brief, Style};
use serde::Serialize;

/// What every terminal has.
const WIDTH: usize = 80;
/// What is told stands behind the number of its act.
const MARGIN: &str = "   ";

/// Where the story is told.
pub(super) struct Screen {
    audience: Audience,
    /// The line on the screen that the next one overwrites.
    passing: Option<String>,
}

enum Audience {
    People {
        style: Style,
        /// Whether a line can be overwritten.
        terminal: bool,
    },
    Nobody,
}

impl Screen {
    /// On standard output, with colours if it takes them.
    pub(super) fn for_people() -> Self {
        let stdout = io::stdout();
        let plain = anstream::AutoStream::choice(&stdout) == anstream::ColorChoice::Never;
        let style = if plain { Style::Plain } else { Style::Coloured };
        let terminal = !plain && stdout.is_terminal();
        Self { audience: Audience::People { style, terminal }, passing: None }
    }

    /// Tells nothing.
    pub(super) fn silent() -> Self {
        Self { audience: Audience::Nobody, passing: None }
    }

    /// What this is.
    pub(super) fn opening(&mut self, title: &str, caption: &str) -> anyhow::Result<()> {
        let title = self.paint(Ansi::new().bold(), title);
        self.write(&format!("\n{MARGIN}{title}  {caption}\n"))
    }

    /// An act begins.
    pub(super) fn act(&mut self, number: u32, title: &str, captions: &[&str]) -> anyhow::Result<()> {
        let title = self.paint(AnsiColor::Blue.on_default().bold(), &format!("{number}  {title}"));
        let mut text = format!("\n{title}\n");
        for caption in captions {
            text.push_str(&format!("{MARGIN}{caption}\n"));
        }
        text.push('\n');
        self.write(&text)
    }

    /// One record.
    pub(super) fn record(&mut self, brief: Option<Brief<'_>>) -> anyhow::Result<()> {
        let (Some(brief), Audience::People { style, .. }) = (brief, &self.audience) else { return Ok(()) };
        let line = brief.line(*style, WIDTH - MARGIN.len());
        self.write(&format!("{MARGIN}{line}\n"))
    }

    /// A remark between records.
    pub(super) fn aside(&mut self, text: &str) -> anyhow::Result<()> {
        let text = self.paint(Ansi::new().dimmed(), text);
        self.write(&format!("{MARGIN}  {text}\n"))
    }

    /// A figure that moves: on a terminal the next one takes its place, elsewhere it is not shown.
    pub(super) fn passing(&mut self, text: &str) -> anyhow::Result<()> {
        let overwrites = matches!(self.audience, Audience::People { terminal: true, .. });
        if !overwrites || self.passing.as_deref() == Some(text) {
            return Ok(());
        }
        self.write(&format!("{MARGIN}  {text}"))?;
        self.passing = Some(text.to_owned());
        Ok(())
    }

    /// What came of it: a promise that was kept, or one that was not.
    pub(super) fn outcome(&mut self, kept: bool, text: &str) -> anyhow::Result<()> {
        let (colour, sign) = if kept { (AnsiColor::Green, "✓") } else { (AnsiColor::Red, "✗") };
        let sign = self.paint(colour.on_default().bold(), sign);
        self.write(&format!("{MARGIN}{sign} {text}\n"))
    }

    /// A remark on its own.
    pub(super) fn remark(&mut self, text: &str) -> anyhow::Result<()> {
        self.write(&format!("{MARGIN}{text}\n"))
    }

    /// An empty line.
    pub(super) fn space(&mut self) -> anyhow::Result<()> {
        self.write("\n")
    }

    /// The word of the verdict.
    pub(super) fn verdict(&mut self, clean: bool) -> anyhow::Result<()> {
        let (colour, word) = if clean { (AnsiColor::Green, "clean") } else { (AnsiColor::Red, "not clean") };
        let word = self.paint(colour.on_default().bold(), word);
        let title = self.paint(Ansi::new().bold(), "Verdict:");
        self.write(&format!("\n{MARGIN}{title} {word}\n\n"))
    }

    /// A figure of the verdict.
    pub(super) fn figure(&mut self, name: &str, figure: impl std::fmt::Display, remark: &str) -> anyhow::Result<()> {
        let remark = self.paint(Ansi::new().dimmed(), remark);
        let line = format!("{MARGIN}{name:<18}{figure:>7}   {remark}");
        self.write(&format!("{}\n", line.trim_end()))
    }

    fn paint(&self, style: Ansi, text: &str) -> String {
        match self.audience {
            Audience::People { style: Style::Coloured, .. } if !text.is_empty() => format!("{style}{text}{style:#}"),
            _ => text.to_owned(),
        }
    }

    fn write(&mut self, text: &str) -> anyhow::Result<()> {
        if matches!(self.audience, Audience::Nobody) {
            return Ok(());
        }
        let overwrite = if self.passing.take().is_some() { "\r\x1b[K" } else { "" };
        print(&format!("{overwrite}{text}"))
    }

    /// Leaves a line that may be overwritten as it is.
    pub(super) fn close(&mut self) {
        if self.passing.take().is_some() {
            // Nobody may be there any more to read it.
            let _ = print("\n");
        }
    }
}

/// Prints one JSON object.
pub(super) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).context("cannot write to standard output")
}
