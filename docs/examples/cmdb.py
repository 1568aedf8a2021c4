#!/usr/bin/env python3
"""A small CMDB: folds the records of a kubetide file sink into SQLite.

    cmdb.py changes.ndjson cmdb.sqlite

Reads what is new in the file, and ends. Run it as often as you like: records that come again change nothing, and how far it has
read is committed together with what it has read. The file may be rotated (moved away, or copied and cut): the rest of the old one
is read first where it is found beside the file, as changes.ndjson.1 or changes.ndjson-20261118. If records are missing it says so
and exits with 1 until a snapshot has come. One database is for one file: a snapshot is all that its sink has, not what others have.
Only the standard library is needed. See docs/records.md for the rules.
"""

import glob
import hashlib
import json
import os
import sqlite3
import sys

EVERY_STREAM = "*"  # what a control record of scope sink speaks of
LOST = "records_lost"  # a gap of our own making: the file was replaced before it was read to its end

SCHEMA = """
-- what there is
CREATE TABLE IF NOT EXISTS objects (
    cluster TEXT, stream TEXT, namespace TEXT, name TEXT, uid TEXT, version TEXT, object TEXT,
    PRIMARY KEY (cluster, stream, namespace, name));
-- what happened: every state and every delete once, by its id
CREATE TABLE IF NOT EXISTS history (
    id TEXT PRIMARY KEY, at TEXT, op TEXT, origin TEXT, stream TEXT, namespace TEXT, name TEXT, version TEXT,
    manager TEXT, paths TEXT);
-- what was not seen
CREATE TABLE IF NOT EXISTS gaps (id TEXT PRIMARY KEY, cluster TEXT, stream TEXT, reason TEXT, since TEXT, told TEXT, whole_again TEXT);
-- snapshots under way, and the objects that they have shown
CREATE TABLE IF NOT EXISTS snapshots (cluster TEXT, stream TEXT, id TEXT, PRIMARY KEY (cluster, stream));
CREATE TABLE IF NOT EXISTS shown (
    snapshot TEXT, stream TEXT, namespace TEXT, name TEXT, PRIMARY KEY (snapshot, stream, namespace, name));
-- how far the file was read: the last line, where it ends, and where it is in the log
CREATE TABLE IF NOT EXISTS place (
    file TEXT PRIMARY KEY, offset INTEGER, length INTEGER, digest TEXT, log TEXT, seq INTEGER);
"""


def fold(db, record):
    """One record. Everything here may be done twice."""
    op = record["op"]
    if op in ("snapshot", "create", "update"):
        put(db, record)
    elif op == "delete":
        remove(db, record)
    else:
        control(db, record)


def key_of(record):
    return record["cluster"]["name"], record["stream"], record["namespace"], record["name"]


def put(db, record):
    cluster, stream, namespace, name = key_of(record)
    body = json.dumps(record["object"])
    state = (cluster, stream, namespace, name, record["uid"], record["resource_version"], body)
    db.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?, ?, ?)", state)
    under_way = "SELECT id, ?, ?, ? FROM snapshots WHERE cluster = ? AND stream IN (?, ?)"
    db.execute(f"INSERT OR IGNORE INTO shown {under_way}", (stream, namespace, name, cluster, stream, EVERY_STREAM))
    remember(db, record)


def remove(db, record):
    # By uid: an object of the same name that was made since stays. One that is not there is as good as removed.
    where = "cluster = ? AND stream = ? AND namespace = ? AND name = ? AND uid = ?"
    db.execute(f"DELETE FROM objects WHERE {where}", (*key_of(record), record["uid"]))
    remember(db, record)


def remember(db, record):
    manager = (record["actor"] or {}).get("manager")
    paths = " ".join((record["change"] or {}).get("paths", []))
    event = [record[field] for field in ("id", "observed_at", "op", "origin", "stream", "namespace", "name", "resource_version")]
    db.execute("INSERT OR IGNORE INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*event, manager, paths))


def control(db, record):
    op, at = record["op"], record["observed_at"]
    what = (record["cluster"]["name"], record["stream"] or EVERY_STREAM)
    if op == "snapshot_started":
        begin(db, what, record["id"])
    elif op == "snapshot_finished":
        close_gaps(db, what, at, is_whole=sweep(db, what))
    elif op == "gap":
        since = record["from"]["at"]
        db.execute("INSERT OR IGNORE INTO gaps VALUES (?, ?, ?, ?, ?, ?, NULL)", (record["id"], *what, record["reason"], since, at))
    elif op in ("resync_finished", "stream_removed"):
        # A stream that is removed with its resource has had its deletes. One that is only not followed any more keeps its objects.
        close_gaps(db, what, at)
    # replay: what follows is folded again. Others: not known yet.


def begin(db, what, snapshot):
    under_way = db.execute("SELECT id FROM snapshots WHERE cluster = ? AND stream = ?", what).fetchone()
    if under_way == (snapshot,):
        return  # It comes again; what it has shown so far still counts.
    if under_way:
        db.execute("DELETE FROM shown WHERE snapshot = ?", under_way)
    db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", (*what, snapshot))


def sweep(db, what):
    """The snapshot is complete: what it has not shown is not there. Whether it was seen from its beginning."""
    under_way = db.execute("SELECT id FROM snapshots WHERE cluster = ? AND stream = ?", what).fetchone()
    if not under_way:
        return False  # Its beginning was not read, so that nothing is known about what is absent.
    not_shown = """cluster = ? AND ? IN (stream, '*') AND NOT EXISTS (SELECT 1 FROM shown WHERE snapshot = ?
        AND shown.stream = objects.stream AND shown.namespace = objects.namespace AND shown.name = objects.name)"""
    db.execute(f"DELETE FROM objects WHERE {not_shown}", (*what, *under_way))
    db.execute("DELETE FROM snapshots WHERE id = ?", under_way)
    db.execute("DELETE FROM shown WHERE snapshot = ?", under_way)
    return True


def close_gaps(db, what, at, is_whole=False):
    # kubetide does not know what was lost here: only a whole snapshot mends that.
    open_ones = "whole_again IS NULL AND cluster = ? AND ? IN (stream, '*') AND (? OR reason != ?)"
    db.execute(f"UPDATE gaps SET whole_again = ? WHERE {open_ones}", (at, *what, is_whole, LOST))


def read(db, path):
    """Folds the whole lines that were not read yet, and notes how far it is, in one transaction."""
    folded = 0
    with db:
        place = db.execute("SELECT offset, length, digest, log, seq FROM place").fetchone()
        for part, offset, is_next in parts(path, place):
            with open(part, "rb") as file:
                file.seek(offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # Half a line: the rest is still being written.
                    record = json.loads(line)
                    if not is_next:
                        check_joint(db, place, record)
                    fold(db, record)
                    is_next = True
                    offset += len(line)
                    folded += 1
                    place = (offset, len(line), hashlib.sha256(line).hexdigest(), record["log"]["id"], record["log"]["seq"])
        if place:
            db.execute("INSERT OR REPLACE INTO place VALUES (?, ?, ?, ?, ?, ?)", (path, *place))
    return folded


def parts(path, place):
    """What to read, oldest first: file, offset, and whether it surely follows what was read before."""
    stem, extension = os.path.splitext(path)
    # As logrotate names them (changes.ndjson.1), and as the sink's own `rotate` does (changes-….ndjson).
    names = [glob.escape(path) + "[.-]*", glob.escape(stem) + "-*" + glob.escape(extension)]
    rotated = sorted({file for name in names for file in glob.glob(name)}, key=os.path.getmtime)
    files = [file for file in (*rotated, path) if os.path.isfile(file)]
    for at in reversed(range(len(files) if place else 0)):
        if ends_there(files[at], *place[:3]):
            newer = [file for file in files[at + 1 :] if is_ours(file)]
            is_next = at + 1 + len(newer) == len(files)  # Else there is one between them that cannot be read: packed, perhaps.
            return [(files[at], place[0], True)] + [(file, 0, is_next) for file in newer]
    return [(path, 0, not place)]  # From the beginning: what comes again does no harm.


def is_ours(path):
    with open(path, "rb") as file:
        return file.read(20) in (b'{"schema":"kubetide.', b"")


def ends_there(path, offset, length, digest):
    """Whether the line that was read last is in this file, where it was: so nothing is read from the middle of a line."""
    with open(path, "rb") as file:
        file.seek(offset - length)
        return hashlib.sha256(file.read(length)).hexdigest() == digest


def check_joint(db, place, record):
    """The file was replaced, and the old one is nowhere. Is this the next record, or one from before?"""
    log, seq = place[3:]
    if record["log"]["seq"] > (seq + 1 if record["log"]["id"] == log else 1):
        gap = (f"{log}/{seq}", record["cluster"]["name"], EVERY_STREAM, LOST, None, record["observed_at"])
        db.execute("INSERT OR IGNORE INTO gaps VALUES (?, ?, ?, ?, ?, ?, NULL)", gap)


def report(db, folded):
    def one(query):
        return db.execute(query).fetchone()[0]

    history, gaps = one("SELECT count(*) FROM history"), one("SELECT count(*) FROM gaps")
    uncertain = one("SELECT count(*) FROM gaps WHERE whole_again IS NULL")
    print(f"read {folded} records: {history} states and deletes in all, {gaps} gaps ({uncertain} open)")
    for stream, objects in db.execute("SELECT stream, count(*) FROM objects GROUP BY stream ORDER BY stream"):
        print(f"{objects:6} {stream}")


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: cmdb.py changes.ndjson cmdb.sqlite")
    path = os.path.abspath(sys.argv[1])
    db = sqlite3.connect(sys.argv[2])
    db.executescript(SCHEMA)
    other = db.execute("SELECT file FROM place WHERE file != ?", (path,)).fetchone()
    if other:
        sys.exit(f"{sys.argv[2]} is the database of {other[0]}; give {path} one of its own")
    report(db, read(db, path))
    lost = db.execute("SELECT id FROM gaps WHERE reason = ? AND whole_again IS NULL", (LOST,)).fetchone()
    db.close()
    if lost:
        why = f"{path} was replaced before they were read, and the old file is not beside it"
        sys.exit(f"records behind {lost[0]} are missing: {why}; run `kubetide sink resnapshot` for its sink, then this again")


if __name__ == "__main__":
    main()
