//! `metadata.managedFields`, which are not kept: a checksum of each entry, and who wrote it when.

use crate::change::{
    Managed, Trace, Writers,
    json::{Json, Walked, text},
};

/// Reads the value that begins here.
pub(super) fn read(json: &mut Json<'_>, managed: &mut Managed, writers: &mut Writers) -> Walked {
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
        let mut parts: [&[u8]; 4] = [&[]; 4];
        if first == Some(b'{') {
            entry(json, &mut parts)?
        } else {
            json.value()?
        }
        let entry = crc32c::crc32c(&json.bytes[from..json.at]);
        let writer = parts.iter().fold(0, |sum, part| crc32c::crc32c_append(sum, part));
        managed.0.push(Trace { entry, writer });
        let [manager, operation, subresource, at] = parts;
        writers.push([part(manager)?, part(operation)?, part(subresource)?, part(at)?]);
        if !json.another(b']')? {
            return Ok(());
        }
    }
}

/// One entry: the quoted texts of what is told of its writer.
fn entry<'a>(json: &mut Json<'a>, parts: &mut [&'a [u8]; 4]) -> Walked {
    if !json.enter(b'}')? {
        return Ok(());
    }
    loop {
        let key = json.key()?;
        let first = json.next();
        let from = json.at;
        json.value()?;
        let place = match key {
            b"\"manager\"" => Some(0),
            b"\"operation\"" => Some(1),
            b"\"subresource\"" => Some(2),
            b"\"time\"" => Some(3),
            _ => None,
        };
        if let (Some(place), Some(b'"')) = (place, first) {
            parts[place] = &json.bytes[from..json.at];
        }
        if !json.another(b'}')? {
            return Ok(());
        }
    }
}

fn part(quoted: &[u8]) -> Walked<std::borrow::Cow<'_, str>> {
    if quoted.is_empty() { Ok(std::borrow::Cow::Borrowed("")) } else { text(quoted) }
}
