//! One state, one id, however it came to be known.

use kubetide::{
    change::{
        Row,
        compare::{self, By, Detail, Draft, Meaning, View},
        scan,
    },
    source::{answer::WatchEvent, lines::Line},
};
use kubetide_sink::{Id, sample};
use proptest::prelude::*;

use crate::{cleaner, row};

fn last(meaning: Meaning) -> Draft {
    match meaning {
        Meaning::Changes(mut drafts) => drafts.pop().unwrap(),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn a_state_has_the_same_id_by_watch_by_list_and_after_a_restart(
        uid in "[a-f0-9-]{1,36}", version in 2_u64..u64::MAX, lineage in any::<u64>(), spec in ".*",
    ) {
        let (stream, cleaner, detail) = (sample::stream("any", "Any"), cleaner("any", &[], &[]), Detail::default());
        let object = |version: u64, spec: &str| {
            format!(r#""metadata":{{"name":"a","uid":"{uid}","resourceVersion":"{version}"}},"spec":{}"#, serde_json::json!(spec))
        };
        let listed = || scan::observe(&cleaner, format!("{{{}}}", object(version, &spec)).as_bytes()).unwrap();
        let watched = |kind: &str, spelling: &str| {
            let object = format!(r#"{{"kind":"Any","apiVersion":"v1",{}}}"#, object(version, &spec));
            let line = format!(r#"{{{spelling}"type":"{kind}","object":{object}}}"#);
            match WatchEvent::parse(&cleaner, &Line::Whole(line.into())) {
                Ok(WatchEvent::Present(observed)) => observed,
                _ => panic!("no event"),
            }
        };
        let before = scan::observe(&cleaner, format!("{{{}}}", object(1, "before")).as_bytes()).unwrap();
        let stored = postcard::to_stdvec(&row(&before)).unwrap();
        let restarted: Row = postcard::from_bytes(&stored).unwrap();
        let mut ids = Vec::new();
        for known in [None, Some(&row(&before)), Some(&restarted)] {
            for view in [View::Watch, View::Snapshot(Id([7; 16])), View::Resync(By::Version), View::Resync(By::Content)] {
                // In the API server's spelling, in another one, and from a LIST.
                for observed in [watched("MODIFIED", ""), watched("ADDED", " "), listed()] {
                    ids.push(last(compare::present(&stream, lineage, known, observed, view, &detail)));
                }
            }
        }
        prop_assert!(ids.iter().all(|draft| draft.id == ids[0].id));
        prop_assert!(ids.iter().all(|draft| draft.change.object == ids[0].change.object), "and the same bytes");
    }
}
