//! Times and places in the log as people give them, and times as they are told.

use jiff::{SignedDuration, Timestamp, ToSpan as _, civil, tz::TimeZone};

use crate::{api::Point, vitals};

/// What is allowed as a time.
const TIMES: &str =
    "a time such as 2026-11-16T04:00:00Z, 2026-11-16T04:00:00 or 04:00:00 of this time zone, or 90s, 10m, 2h, 1d ago";

/// `1042`, a time, or `10m` ago.
pub(super) fn point(text: &str) -> Result<Point, String> {
    match text.parse() {
        Ok(0) => Err(format!("found {text:?}; allowed: a seq from 1 on, {TIMES}")),
        Ok(seq) => Ok(Point::Seq(seq)),
        Err(_) => {
            time(text).map(Point::At).map_err(|_| format!("found {text:?}; allowed: a seq such as 1042, {TIMES}"))
        }
    }
}

/// `1042`
pub(super) fn seq(text: &str) -> Result<u64, String> {
    text.parse()
        .ok()
        .filter(|seq| *seq > 0)
        .ok_or_else(|| format!("found {text:?}; allowed: a seq such as 1042, from 1 on"))
}

/// The same where a time has another name.
pub(super) fn seq_not_time(text: &str) -> Result<u64, String> {
    seq(text).map_err(|wrong| if time(text).is_ok() { format!("{wrong}; a time goes with --since") } else { wrong })
}

/// One of several words. An empty one would mean nothing here and everything there.
pub(super) fn word(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("found an empty word; leave it out, or say which".into()) } else { Ok(text.to_owned()) }
}

/// `2026-11-16T04:00:00Z`, the same without a zone, `04:00:00`, or `10m` ago.
pub(super) fn time(text: &str) -> Result<Timestamp, String> {
    let wrong = || format!("found {text:?}; allowed: {TIMES}");
    if let Ok(at) = text.parse() {
        return Ok(at);
    }
    if let Some(at) = local(text, Timestamp::now(), &TimeZone::system()) {
        return Ok(at);
    }
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number: i64 = text[..text.len() - 1].parse().ok().filter(|number| *number >= 0).ok_or_else(wrong)?;
    let ago = number.checked_mul(seconds).map(SignedDuration::from_secs).ok_or_else(wrong)?;
    Timestamp::now().checked_sub(ago).map_err(|_| wrong())
}

/// A time as `tail` shows it; one without a day is the last that there was.
fn local(text: &str, now: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    // `12` is a seq, not noon.
    if !text.contains(':') {
        return None;
    }
    let stamp = |at: civil::DateTime| at.to_zoned(zone.clone()).ok().map(|at| at.timestamp());
    if let Ok(time) = text.parse::<civil::Time>() {
        let today = now.to_zoned(zone.clone()).date();
        let at = stamp(today.to_datetime(time))?;
        return if at <= now { Some(at) } else { stamp(today.checked_sub(1.day()).ok()?.to_datetime(time)) };
    }
    stamp(text.parse::<civil::DateTime>().ok()?)
}

/// `2026-11-16 04:00:00Z`
pub(super) fn told(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// `4 min`; nothing that is still to come, however the clocks are set.
pub(super) fn since(at: Timestamp, now: Timestamp) -> String {
    vitals::time(now.duration_since(at).try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    #[test]
    fn a_point_is_a_seq_a_time_or_so_long_ago() {
        assert_eq!(point("1042"), Ok(Point::Seq(1042)));
        assert_eq!(point("1970-01-01T00:00:00Z"), Ok(Point::At(Timestamp::UNIX_EPOCH)));
        let Ok(Point::At(at)) = point("2h") else { panic!() };
        let ago = Timestamp::now().duration_since(at).as_secs();
        assert!((7_200..7_260).contains(&ago), "{ago}");
        for wrong in ["", "0", "m", "-5m", "5w", "ten", "1.5h", "99999999999999999999d", "é"] {
            assert!(point(wrong).unwrap_err().contains("allowed"), "{wrong}");
            assert!(time(wrong).is_err(), "{wrong}");
        }
        assert!(time("1042").is_err(), "a seq is no time");
    }

    #[test]
    fn a_time_without_a_zone_is_of_this_one_and_without_a_day_the_last_that_there_was() {
        let zone = TimeZone::fixed(jiff::tz::offset(2));
        let now = "2026-11-16T04:00:00Z".parse().unwrap();
        let of = |text| local(text, now, &zone).map(|at| at.to_string());
        assert_eq!(of("2026-11-16T04:00:00").as_deref(), Some("2026-11-16T02:00:00Z"));
        assert_eq!(of("2026-11-16 04:00:00").as_deref(), Some("2026-11-16T02:00:00Z"));
        assert_eq!(of("05:59:59").as_deref(), Some("2026-11-16T03:59:59Z"));
        assert_eq!(of("06:00:01").as_deref(), Some("2026-11-15T04:00:01Z"));
        assert_eq!(of("2h"), None);
    }

    #[test]
    fn times_are_told_as_people_say_them() {
        let now: Timestamp = "2026-11-16T04:04:10Z".parse().unwrap();
        let at = "2026-11-16T04:00:00.9Z".parse().unwrap();
        assert_eq!((told(at).as_str(), since(at, now).as_str()), ("2026-11-16 04:00:00Z", "4 min"));
        assert_eq!(since(now, at), "0 s");
    }
}
