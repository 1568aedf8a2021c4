#!/usr/bin/env python3
"""A small CMDB: folds the records of a kubetide file sink into SQLite.

    cmdb.py changes.ndjson cmdb.sqlite

Reads what is new in the file, and ends. Run it as often as you like: records that come again change nothing, and how far it has
read is committed together with what it has read. Only the standard library is needed. See docs/records.md for the rules.
"""

import json
import os
import sqlite3
import sys

EVERY_STREAM = "*"  # what a control record of scope sink speaks of

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
CREATE TABLE IF NOT EXISTS progress (file TEXT PRIMARY KEY, inode INTEGER, offset INTEGER);
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
        sweep(db, what)
        close_gaps(db, what, at)
    elif op == "gap":
        since = record["from"]["at"]
        db.execute("INSERT OR IGNORE INTO gaps VALUES (?, ?, ?, ?, ?, ?, NULL)", (record["id"], *what, record["reason"], since, at))
    elif op == "resync_finished":
        close_gaps(db, what, at)
    # stream_removed: if the resource is gone, its deletes came before. replay: what follows is folded again. Others: not known yet.


def begin(db, what, snapshot):
    under_way = db.execute("SELECT id FROM snapshots WHERE cluster = ? AND stream = ?", what).fetchone()
    if under_way == (snapshot,):
        return  # It comes again; what it has shown so far still counts.
    if under_way:
        db.execute("DELETE FROM shown WHERE snapshot = ?", under_way)
    db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", (*what, snapshot))


def sweep(db, what):
    """The snapshot is complete: what it has not shown is not there."""
    under_way = db.execute("SELECT id FROM snapshots WHERE cluster = ? AND stream = ?", what).fetchone()
    if not under_way:
        return  # Its beginning was not read, so that nothing is known about what is absent.
    not_shown = """cluster = ? AND ? IN (stream, '*') AND NOT EXISTS (SELECT 1 FROM shown WHERE snapshot = ?
        AND shown.stream = objects.stream AND shown.namespace = objects.namespace AND shown.name = objects.name)"""
    db.execute(f"DELETE FROM objects WHERE {not_shown}", (*what, *under_way))
    db.execute("DELETE FROM snapshots WHERE id = ?", under_way)
    db.execute("DELETE FROM shown WHERE snapshot = ?", under_way)


def close_gaps(db, what, at):
    open_ones = "whole_again IS NULL AND cluster = ? AND ? IN (stream, '*')"
    db.execute(f"UPDATE gaps SET whole_again = ? WHERE {open_ones}", (at, *what))


def read(db, path):
    """Folds the whole lines of the file that were not read yet, and notes how far it is, in one transaction."""
    folded = 0
    with open(path, "rb") as file, db:
        status = os.fstat(file.fileno())
        inode, offset = db.execute("SELECT inode, offset FROM progress WHERE file = ?", (path,)).fetchone() or (None, 0)
        if inode != status.st_ino or offset > status.st_size:
            offset = 0  # Another file, or a shorter one: from its beginning. What comes again does no harm.
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                break  # Half a line: the rest is still being written.
            fold(db, json.loads(line))
            offset += len(line)
            folded += 1
        db.execute("INSERT OR REPLACE INTO progress VALUES (?, ?, ?)", (path, status.st_ino, offset))
    return folded


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
    db = sqlite3.connect(sys.argv[2])
    db.executescript(SCHEMA)
    report(db, read(db, sys.argv[1]))
    db.close()


if __name__ == "__main__":
    main()
