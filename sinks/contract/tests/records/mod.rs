//! Records to try the formats on: one of every kind, and ones with names that were chosen to break them.

#![allow(dead_code, reason = "each test file uses a part")]

use std::sync::Arc;

use kubetide_sink::{
    Actor, Body, Change, Class, Cluster, Control, Counts, Difference, From, Id, Op, Origin, Reason, Record, Scope,
    Stream, What, sample, truncated,
};
use proptest::prelude::*;

/// Objects whose bytes a careless writer would change.
pub(crate) const OBJECTS: [&str; 5] = [
    "{}",
    r#"{"b":1.50,"a":"\u00e9\/é","z":{ },"n":1e2,"big":12345678901234567890123,"b":2}"#,
    r#"{"data":{"key":"//79/P8AAQID","bin":"\u0000\u001f\ud83d\ude00"},"x":"]}},\"data\":{"}"#,
    " {\"spaces\" : [ 1 ,\t2 ] }",
    r#"{"kind":"ConfigMap","metadata":{"name":"a\"b\\c"}}"#,
];

const OPS: [Op; 4] = [Op::Snapshot, Op::Create, Op::Update, Op::Delete];

const HOSTILE: [&str; 11] =
    ["", "a/b", "%2F", "\"", "\\", "\r\nce-id: x", "\0", "é", "\u{7f}\u{80}\u{ffff}\u{1fffe}", " a ", "😀"];

/// A change of a Deployment, with this op.
pub(crate) fn change(op: Op) -> Change {
    let Body::Change(change) = sample::record(7, OBJECTS[1]).body else { unreachable!("a sample is a change") };
    Change { op, namespace: "default".into(), name: "web".into(), ..change }
}

/// The record of a stream of Deployments with this body.
pub(crate) fn record(body: Body) -> Record {
    let cluster = Cluster { name: "prod-eu1".into(), uid: "dd5fa0d0-fd48-4240-a022-e2b2053b1a20".into() };
    let stream = Stream {
        cluster,
        group: "apps".into(),
        namespace: Some("default".into()),
        ..sample::stream("deployments", "Deployment")
    };
    Record {
        id: Id([0xab; 16]),
        stream: Arc::new(stream),
        observed_at: "2026-11-16T04:00:00.123456Z".parse().unwrap(),
        body,
        ..sample::record(1042, "")
    }
}

/// A control record of the whole stream.
pub(crate) fn control(what: What) -> Record {
    record(Body::Control(Control { what, scope: Scope::Stream }))
}

/// One record for every op and what an op may come with, and for every kind of control record.
pub(crate) fn every() -> Vec<Record> {
    let object = |text: &'static str| Some(text.into());
    let update = Change {
        previous_resource_version: Some("6".into()),
        generation: Some(2),
        difference: Some(Difference { classes: vec![Class::Spec], paths: vec!["/spec/replicas".into()] }),
        actor: Some(Actor {
            manager: "kubectl-edit".into(),
            operation: "Update".into(),
            subresource: String::new(),
            at: None,
        }),
        patch: object(r#"[{"op":"replace","path":"/spec/replicas","value":3}]"#),
        before: object(r#"{"was":1.0}"#),
        ..change(Op::Update)
    };
    let changes = [
        Change { snapshot: Some(Id([0xcd; 16])), origin: Origin::List, ..change(Op::Snapshot) },
        change(Op::Create),
        change(Op::Update),
        update.clone(),
        change(Op::Delete),
        Change { object: None, origin: Origin::List, ..change(Op::Delete) },
        Change { object: None, problem: Some("deeper than 512 \"levels\"".into()), ..change(Op::Update) },
    ];
    let mut all: Vec<Record> = changes.map(|change| record(Body::Change(change))).into();
    all.push(truncated(&record(Body::Change(update))).unwrap());

    let from = From { resource_version: Some("9".into()), at: None, seq: 3 };
    let counts = Counts { create: 1, update: 2, delete: 3, unchanged: 4 };
    all.extend(
        [
            What::SnapshotStarted,
            What::SnapshotFinished { snapshot: 5, position: Some("12".into()) },
            What::Gap { reason: Reason::Expired, from: from.clone() },
            What::ResyncFinished { counts, position: None },
            What::StreamRemoved { deleted: 3 },
        ]
        .map(control),
    );
    // Of no one stream.
    let none = Arc::new(Stream::none_of(all[0].stream.cluster.clone()));
    let gap = What::Gap { reason: Reason::LogLost, from: from.clone() };
    let letters = What::Letters { from: from.clone(), letters: 2 };
    for (what, scope) in [(What::Replay { from }, Scope::Sink), (letters, Scope::Sink), (gap, Scope::Log)] {
        let body = Body::Control(Control { what, scope });
        all.push(Record { stream: none.clone(), ..record(body) });
    }
    all
}

/// Any text, and more often than by chance what means something to somebody on the way.
fn hostile() -> impl Strategy<Value = String> {
    prop_oneof![proptest::sample::select(&HOSTILE[..]).prop_map(str::to_owned), any::<String>()]
}

/// A change with hostile names and an object with bytes worth keeping.
pub(crate) fn any_change() -> impl Strategy<Value = Record> {
    let texts = (hostile(), hostile(), hostile(), hostile(), hostile());
    let rest =
        (proptest::sample::select(&OPS[..]), proptest::sample::select(&OBJECTS[..]), any::<bool>(), any::<u64>());
    (texts, rest).prop_map(|((name, namespace, uid, cluster, manager), (op, object, before, seq))| {
        let actor = Actor { manager, operation: "Apply".into(), subresource: String::new(), at: None };
        let change = Change {
            name,
            namespace,
            uid: uid.clone(),
            actor: Some(actor),
            object: Some(object.into()),
            before: before.then(|| object.into()),
            ..change(op)
        };
        let record = record(Body::Change(change));
        let stream = Stream { cluster: Cluster { name: cluster, uid }, ..(*record.stream).clone() };
        Record { seq, stream: Arc::new(stream), ..record }
    })
}
