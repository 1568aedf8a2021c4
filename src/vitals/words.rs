//! Figures and times as people say them: `12,500`, `3 min`.

use std::time::Duration;

/// `12,500`
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `12,500 of about 40,000`. An estimate that was passed already is not repeated.
pub(crate) fn progress(listed: u64, about: Option<u64>) -> String {
    match about.filter(|about| *about >= listed) {
        Some(about) => format!("{} of about {}", thousands(listed), thousands(about)),
        None => thousands(listed),
    }
}

/// `12 s`, `3 min`, `2 h`, `5 d`: whole ones of the largest unit that there are two of.
pub(crate) fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// On one line and not without end: what failed may have said anything.
pub(super) fn short(message: &str) -> String {
    const LONGEST: usize = 300;
    let mut words = message.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = words.char_indices().nth(LONGEST) {
        words.truncate(end);
        words.push('…');
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_have_commas() {
        let said = [0, 999, 1_000, 12_500, 40_000, 123_456, 1_234_567].map(thousands);
        assert_eq!(said, ["0", "999", "1,000", "12,500", "40,000", "123,456", "1,234,567"]);
    }

    #[test]
    fn progress_names_an_estimate_only_while_it_can_be_true() {
        assert_eq!(progress(12_500, Some(40_000)), "12,500 of about 40,000");
        assert_eq!(progress(40_001, Some(40_000)), "40,001");
        assert_eq!(progress(7, None), "7");
    }

    #[test]
    fn time_is_told_in_the_unit_that_fits() {
        let said = [0, 119, 120, 7_199, 7_200, 172_799, 172_800].map(|seconds| time(Duration::from_secs(seconds)));
        assert_eq!(said, ["0 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 d"]);
    }

    #[test]
    fn a_long_message_is_cut_and_stays_on_one_line() {
        assert_eq!(short("a\n b\r\n\tc "), "a b c");
        assert_eq!(short(&"ä".repeat(400)), format!("{}…", "ä".repeat(300)));
    }
}
