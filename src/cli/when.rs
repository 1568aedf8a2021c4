//! Times and places in the log as people give them, and times as they are told.

use jiff::{SignedDuration, Timestamp};

use crate::{api::Point, vitals};

/// `1042`, `2026-11-16T04:00:00Z`, or `10m` ago.
pub(super) fn point(text: &str) -> Result<Point, String> {
    match text.parse() {
        Ok(seq) => Ok(Point::Seq(seq)),
        Err(_) => time(text).map(Point::At).map_err(|_| {
            let allowed = "a seq such as 1042, a time such as 2026-11-16T04:00:00Z, or 90s, 10m, 2h, 1d ago";
            format!("found {text:?}; allowed: {allowed}")
        }),
    }
}

/// `2026-11-16T04:00:00Z`, or `10m` ago.
pub(super) fn time(text: &str) -> Result<Timestamp, String> {
    let wrong = || format!("found {text:?}; allowed: a time such as 2026-11-16T04:00:00Z, or 90s, 10m, 2h, 1d ago");
    if let Ok(at) = text.parse() {
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
        for wrong in ["", "m", "-5m", "5w", "ten", "1.5h", "99999999999999999999d", "é"] {
            assert!(point(wrong).unwrap_err().contains("allowed"), "{wrong}");
            assert!(time(wrong).is_err(), "{wrong}");
        }
        assert!(time("1042").is_err(), "a seq is no time");
    }

    #[test]
    fn times_are_told_as_people_say_them() {
        let now: Timestamp = "2026-11-16T04:04:10Z".parse().unwrap();
        let at = "2026-11-16T04:00:00.9Z".parse().unwrap();
        assert_eq!((told(at).as_str(), since(at, now).as_str()), ("2026-11-16 04:00:00Z", "4 min"));
        assert_eq!(since(now, at), "0 s");
    }
}
