//! `metadata.managedFields`, which are not kept: a checksum of each entry, and who wrote it when.

use std::borrow::Cow;

use crate::change::{
    Managed, Trace, Writers,
    json::{Json, TOO_DEEP, Walked, over},
};

/// Reads the value that begins here. Where it is too deep, it is as one entry that nobody has written: nothing of it is kept, so
/// that it is no reason not to keep the object.
pub(super) fn read(json: &mut Json<'_>, managed: &mut Managed, writers: &mut Writers) -> Walked {
    let before = json.clone();
    match entries(json, managed, writers) {
        Err(TOO_DEEP) => {
            *json = before;
            let from = json.at;
            json.jump(over(json.bytes, from).ok_or(TOO_DEEP)?);
            let entry = crc32c::crc32c(&json.bytes[from..json.at]);
            (managed.0, *writers) = (vec![Trace { entry, writer: 0 }], Writers::default());
            Ok(())
        }
        walked => walked,
    }
}

fn entries(json: &mut Json<'_>, managed: &mut Managed, writers: &mut Writers) -> Walked {
    let from = json.at;
    if json.peek() != Some(b'[') {
        json.value()?;
        let entry = crc32c::crc32c(&json.bytes[from..json.at]);
        managed.0.push(Trace { entry, writer: 0 });
        return Ok(());
    }
    if !json.enter(b']')? {
        return Ok(());
    }
    loop {
        let first = json.next();
        let from = json.at;
        let mut parts = [const { Cow::Borrowed("") }; 4];
        if first == Some(b'{') {
            entry(json, &mut parts)?
        } else {
            json.value()?
        }
        let entry = crc32c::crc32c(&json.bytes[from..json.at]);
        let writer = writers.push(&parts);
        managed.0.push(Trace { entry, writer });
        if !json.another(b']')? {
            return Ok(());
        }
    }
}

/// One entry: manager, operation, subresource and time.
fn entry<'a>(json: &mut Json<'a>, parts: &mut [Cow<'a, str>; 4]) -> Walked {
    if !json.enter(b'}')? {
        return Ok(());
    }
    loop {
        let key = json.key()?;
        let first = json.next();
        let place = match key.bytes {
            b"\"manager\"" => Some(0),
            b"\"operation\"" => Some(1),
            b"\"subresource\"" => Some(2),
            b"\"time\"" => Some(3),
            _ => None,
        };
        if let (Some(place), Some(b'"')) = (place, first) {
            parts[place] = json.quoted()?.text()?;
        } else {
            json.value()?;
        }
        if !json.another(b'}')? {
            return Ok(());
        }
    }
}
