//! What came back, as a decision.

use std::{error::Error, io, time::Duration};

use jiff::{Timestamp, fmt::rfc2822};
use kubetide_sink::{Decision, SinkError};
use reqwest::{
    StatusCode, Url,
    header::{HeaderMap, LOCATION, RETRY_AFTER},
};
use rustls::AlertDescription;

/// A receiver that wishes for a longer pause is asked again after this one: it may have been mended meanwhile.
const LONGEST_WISH: Duration = Duration::from_secs(3600);

/// What the receiver says to a request of so many values. Nothing of the body: it may quote what was sent.
pub(crate) fn of_status(
    status: StatusCode,
    headers: &HeaderMap,
    url: &Url,
    values: usize,
    now: Timestamp,
) -> Result<(), SinkError> {
    let decision = match status.as_u16() {
        200..=299 => return Ok(()),
        408 | 425 | 429 | 500..=599 => Decision::Retry { after: wished_pause(headers, now) },
        400 | 413 | 422 if values > 1 => Decision::Split,
        413 => Decision::Oversize,
        400 | 422 => Decision::Poison,
        _ => Decision::Hold,
    };
    let hint = match status.as_u16() {
        300..=399 => match headers.get(LOCATION).and_then(|to| host_of(url, to.to_str().ok()?)) {
            Some(host) => format!(": it redirects to {host}, which is not followed; set url to where it leads"),
            None => ": redirects are not followed; set url to where it leads".into(),
        },
        401 | 403 => ": it refuses the credentials, or the signature".into(),
        404 | 410 => ": nothing takes changes there".into(),
        405 => ": it takes no POST there".into(),
        407 => ": the proxy wants credentials".into(),
        415 => ": it does not take this format or compression".into(),
        _ => String::new(),
    };
    Err(SinkError::new(decision, format!("POST to {} was answered with {status}{hint}", place(url))))
}

/// Scheme, host and port: the rest of a URL may be secret.
pub(crate) fn place(url: &Url) -> String {
    url.origin().ascii_serialization()
}

fn host_of(base: &Url, location: &str) -> Option<String> {
    // As long as a name in DNS can be.
    base.join(location).ok()?.host_str().filter(|host| host.len() <= 253).map(str::to_owned)
}

/// `retry-after`, in seconds or as a date; none where it asks for no pause.
fn wished_pause(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let seconds = match value.parse::<u64>() {
        Ok(seconds) => seconds,
        // A number that is too large is a wish for a long pause.
        Err(_) if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) => u64::MAX,
        Err(_) => {
            let at = rfc2822::DateTimeParser::new().parse_timestamp(value).ok()?;
            u64::try_from(at.as_second().checked_sub(now.as_second())?).ok()?
        }
    };
    (seconds > 0).then(|| Duration::from_secs(seconds).min(LONGEST_WISH))
}

/// There was no answer. Where the cause is in TLS, somebody has to do something about it; all else may pass.
pub(crate) fn of_failure(error: &reqwest::Error, url: &Url, timeout: Duration) -> SinkError {
    let place = place(url);
    if let Some(tls) = cause::<rustls::Error>(error) {
        let message = format!("POST to {place}: TLS: {tls}");
        return if needs_somebody(tls) { SinkError::hold(message) } else { SinkError::retry(message) };
    }
    if error.is_timeout() {
        let (seconds, step) = (timeout.as_secs(), if error.is_connect() { "connection" } else { "answer" });
        return SinkError::retry(format!("POST to {place}: no {step} within {seconds} s"));
    }
    let step = if error.is_connect() { "cannot connect" } else { "the connection broke before the answer" };
    SinkError::retry(format!("POST to {place}: {step}: {}", root(error)))
}

/// Certificates and protocol versions do not mend themselves; a server that stops or has a hiccup does.
fn needs_somebody(error: &rustls::Error) -> bool {
    use AlertDescription as Alert;
    let passing = matches!(
        error,
        rustls::Error::AlertReceived(Alert::InternalError | Alert::UserCanceled | Alert::CloseNotify)
            | rustls::Error::DecryptError
            | rustls::Error::FailedToGetRandomBytes
            | rustls::Error::FailedToGetCurrentTime
    );
    !passing
}

/// The cause of this type. An I/O error shows only the causes of what it wraps, not that itself.
fn cause<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match wrapped {
            Some(wrapped) => Some(wrapped as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
    None
}

/// The innermost cause. Those around it name the URL, or say less.
pub(crate) fn root<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    let mut root = error;
    while let Some(source) = root.source() {
        root = source;
    }
    root
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn answered(status: u16, headers: &[(&str, &str)], values: usize) -> Result<(), SinkError> {
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        let url = Url::parse("https://cmdb.example.com:8443/hooks/T0K3N?key=T0K3N").unwrap();
        of_status(StatusCode::from_u16(status).unwrap(), &headers, &url, values, NOW)
    }

    #[test]
    fn each_status_has_its_decision() {
        let retry = Decision::Retry { after: None };
        for status in [200, 201, 202, 204, 299] {
            assert!(answered(status, &[], 2).is_ok());
        }
        for (one, several, statuses) in [
            (retry, retry, &[408, 425, 429, 500, 501, 502, 503, 504, 599][..]),
            (Decision::Oversize, Decision::Split, &[413]),
            (Decision::Poison, Decision::Split, &[400, 422]),
            (Decision::Hold, Decision::Hold, &[401, 403, 404, 405, 407, 410]),
            (Decision::Hold, Decision::Hold, &[402, 406, 409, 411, 415, 418, 421, 431, 451]),
            (Decision::Hold, Decision::Hold, &[300, 301, 302, 303, 304, 307, 308]),
            (Decision::Hold, Decision::Hold, &[101, 600]),
        ] {
            for status in statuses {
                assert_eq!(answered(*status, &[], 1).unwrap_err().decision, one, "{status}");
                let error = answered(*status, &[], 2).unwrap_err();
                assert_eq!(error.decision, several, "{status}");
                assert!(error.message.contains(&status.to_string()), "{error}");
                assert!(error.message.contains("https://cmdb.example.com:8443"), "{error}");
                assert!(!error.message.contains("T0K3N"), "{error}");
            }
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_and_bounded() {
        let seconds = |value: &str| match answered(503, &[("retry-after", value)], 1).unwrap_err().decision {
            Decision::Retry { after } => after.map(|after| after.as_secs()),
            other => panic!("{other:?}"),
        };
        for (value, expected) in [
            ("7", Some(7)),
            (" 120 ", Some(120)),
            ("999999", Some(3600)),
            ("99999999999999999999999", Some(3600)),
            ("0", None),
            ("-5", None),
            ("", None),
            ("soon", None),
            ("Thu, 01 Jan 1970 00:00:09 GMT", Some(9)),
            ("Wed, 21 Oct 2026 07:28:00 GMT", Some(3600)),
            ("Wed, 31 Dec 1969 23:59:00 GMT", None),
        ] {
            assert_eq!(seconds(value), expected, "{value}");
        }
    }

    #[test]
    fn of_a_redirect_only_the_host_is_named() {
        let message = |to: &str| answered(307, &[("location", to)], 1).unwrap_err().message;
        assert!(message("https://login.example.com/?t=T0K3N").contains("redirects to login.example.com,"));
        assert!(message("/other/T0K3N").contains("redirects to cmdb.example.com,"));
        for to in ["https://login.example.com/?t=T0K3N", "/other/T0K3N", "::T0K3N", "data:T0K3N"] {
            assert!(!message(to).contains("T0K3N"), "{}", message(to));
        }
        assert!(message(&format!("https://{}/", "a".repeat(500))).len() < 300);
    }

    #[test]
    fn what_an_io_error_wraps_is_found() {
        let tls = rustls::Error::AlertReceived(AlertDescription::CertificateRequired);
        let error = io::Error::other(io::Error::other(tls.clone()));
        assert_eq!(cause::<rustls::Error>(&error), Some(&tls));
        assert!(needs_somebody(&tls));
        assert!(!needs_somebody(&rustls::Error::AlertReceived(AlertDescription::InternalError)));
        assert_eq!(cause::<rustls::Error>(&io::Error::from(io::ErrorKind::BrokenPipe)), None);
    }
}
