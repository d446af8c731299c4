//! Whole configurations: what is told of the parts around a tier.

use super::*;

/// A configuration whose one tier and extra part have `tier` and `extra` in them.
fn whole(tier: Json, extra: Json) -> Json {
    let mut t =
        json!({"type": "KvweirTier", "module_path": "kvweir.vllm", "root_dir": "/kv", "max_bytes": "1GiB"});
    let Json::Object(more) = tier else { panic!() };
    t.as_object_mut().unwrap().extend(more);
    let mut e = json!({"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 1_u64 << 30, "secondary_tiers": [t]});
    let Json::Object(more) = extra else { panic!() };
    e.as_object_mut().unwrap().extend(more);
    json!({"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": e})
}

fn mistakes(stanza: &Json) -> Vec<String> {
    told(&check(&Given::json(stanza), None).mistakes)
}

#[test]
fn a_good_configuration_has_no_mistakes_and_says_what_it_left() {
    assert_eq!(mistakes(&whole(json!({}), json!({}))), [""; 0]);
    let of_others = json!({"type": "fs", "root_dir": "/x", "n_threads": 3});
    let ours = json!({"type": "kvweir", "root_dir": "/y", "n_read_threads": 4, "locality": "remote"});
    let mixed = whole(json!({}), json!({"secondary_tiers": [of_others, ours]}));
    let found = check(&Given::json(&mixed), None);
    assert_eq!((found.mistakes.len(), found.tiers), (0, 1));
    assert_eq!(
        found.notes,
        ["kv_connector_extra_config.secondary_tiers[0] (type \"fs\"): not kvweir's, not checked"]
    );
    let extra_alone = &mixed["kv_connector_extra_config"];
    assert_eq!(mistakes(extra_alone), [""; 0]);
    let several = json!({"kv_connector": "MultiConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": [{"kv_connector": "Other"}, mixed]}});
    assert_eq!(check(&Given::json(&several), None).tiers, 1);
}

/// It was accepted in silence.
#[test]
fn one_directory_for_two_tiers_is_a_note_unless_one_only_reads() {
    let tier = |more: Json| {
        let mut t = json!({"type": "kvweir_fs", "root_dir": "/kv", "max_bytes": "1GiB"});
        t.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        t
    };
    let found = |second: Json| {
        let config = whole(
            json!({}),
            json!({"secondary_tiers": [tier(json!({})), tier(second)]}),
        );
        check(&Given::json(&config), None)
    };
    for same in [json!({}), json!({"root_dir": "/kv/"})] {
        let found = found(same);
        assert_eq!((found.mistakes.len(), found.notes.len(), found.tiers), (0, 1, 2));
        let note = &found.notes[0];
        assert!(
            note.starts_with("kv_connector_extra_config.secondary_tiers[1]: root_dir = ")
                && note.contains("secondary_tiers[0]: that works, both are members"),
            "{note}"
        );
    }
    for other in [json!({"root_dir": "/kv2"}), json!({"read_only": true})] {
        let found = found(other);
        assert_eq!((found.mistakes.len(), found.notes.len()), (0, 0));
    }
}

/// Each stanza has a mistake that says so, in one line.
fn assert_told<const N: usize>(cases: [(Json, &str); N]) {
    for (stanza, expected) in cases {
        let told = mistakes(&stanza);
        assert!(told.iter().any(|m| m.contains(expected)), "{expected}: {told:?}");
        assert!(told.iter().all(|m| !m.contains('\n')));
    }
}

/// `KvweirTeir` was an AttributeError without a word; so is whatever else names a class of ours wrongly.
#[test]
fn misspelled_names_are_told_with_the_near_one() {
    let cases = [
        (
            whole(json!({"type": "KvweirTeir"}), json!({})),
            "type = \"KvweirTeir\": did you mean 'KvweirTier'?",
        ),
        (
            whole(json!({"type": "kvwier_fs", "module_path": null}), json!({})),
            "did you mean 'kvweir_fs'?",
        ),
        (
            whole(json!({"type": "Banana"}), json!({})),
            "kvweir.vllm has KvweirTier and KvweirFsTier",
        ),
        (whole(json!({"type": 3}), json!({})), "type = 3: a name is wanted"),
        (
            whole(json!({"module_path": "kvweir.vlm"}), json!({})),
            "needs module_path \"kvweir.vllm\"",
        ),
        (
            whole(json!({}), json!({"spec_name": "TieringOffloadSpec"})),
            "did you mean 'TieringOffloadingSpec'?",
        ),
        (
            whole(json!({}), json!({"spec_name": null})),
            "spec_name = null: a name is wanted",
        ),
        (
            whole(json!({}), json!({"spec_name": "KvweirCpuOffloadingSpec"})),
            "needs spec_module_path",
        ),
        (
            whole(json!({}), json!({"spec_name": "CPUOffloadingSpec"})),
            "it has no secondary tiers",
        ),
        (
            whole(json!({"backpressure": {}}), json!({})),
            "backpressure_cls is not given",
        ),
        (
            whole(
                json!({"backpressure": {"backpressure_cls": "KvweirDetector"}}),
                json!({}),
            ),
            "write \"kvweir.vllm.KvweirDetector\"",
        ),
        (
            whole(
                json!({"backpressure": {"backpressure_cls": "kvweir.vllm.KvweirDetector",
                    "policy_cls": "kvweir.vllm.KvweirDropPolcy"}}),
                json!({}),
            ),
            "did you mean 'kvweir.vllm.KvweirDropPolicy'?",
        ),
    ];
    assert_told(cases);
}

#[test]
fn what_is_no_stanza_at_all_or_has_values_that_cannot_be_is_told() {
    let cases = [
        (
            whole(json!({}), json!({"cpu_bytes_to_use": "8GiB"})),
            "a whole number of bytes: write 8589934592",
        ),
        (
            whole(json!({}), json!({"secondary_tiers": {}})),
            "a list of objects is wanted",
        ),
        (
            whole(json!({}), json!({"secondary_tiers": [3]})),
            "secondary_tiers[0]: 3: an object is wanted",
        ),
        (
            whole(json!({}), json!({"block_size": 64, "blocks_per_chunk": 4})),
            "keep one",
        ),
        (
            whole(json!({}), json!({"blocks_per_chunk": 0})),
            "blocks_per_chunk = 0",
        ),
        (json!([1]), "an object with kv_connector is wanted"),
        (json!({}), "kv_connector is not given"),
        (
            json!({"kv_connector_extra_config": {"secondary_tiers": [{"type": "kvwier"}]}}),
            "did you mean 'kvweir'?",
        ),
        (
            json!({"kv-transfer-config": {"kv_connector": "OffloadingConnector", "kv_role": "both"}}),
            "kv-transfer-config: kv_role = \"both\"",
        ),
        (
            json!({"type": "kvweir", "root_dir": "/a", "polcy": "lru"}),
            "did you mean 'policy'?",
        ),
        (
            whole(json!({}), json!({"cpu_bytes_to_use": 0})),
            "a whole number of bytes above zero",
        ),
        (
            whole(json!({}), json!({"cpu_bytes_to_use": "0GiB"})),
            "a whole number of bytes above zero",
        ),
        (
            json!({"kv_connector": "OffloadingConector", "kv_role": "both"}),
            "kv_role = \"both\"",
        ),
        (json!({"kv_connector": "Other"}), "no tier of kvweir's is named"),
    ];
    assert_told(cases);
    let typo = check(
        &Given::json(&whole(json!({}), json!({"secondary_tier": []}))),
        None,
    );
    assert!(
        typo.notes[0].contains("did you mean 'secondary_tiers'?"),
        "{:?}",
        typo.notes
    );
}

#[test]
fn what_tiers_share_is_told_once_and_where_it_stands() {
    let own = json!({"type": "kvweir", "root_dir": "/b", "max_bytes": "2GiB", "backpressure": {"alpha": 7}});
    let other = json!({"type": "kvweir", "root_dir": "/c"});
    let again =
        json!({"type": "kvweir", "root_dir": "/b/", "max_bytes": "1GiB", "backpressure": {"alpha": 1}});
    let extra = json!({"secondary_tiers": [own, other, again],
        "backpressure": {"backpressure_cls": "kvweir.vllm.KvweirDetector", "failure_threshold": true, "alpha": 9}});
    let place = "kv_connector_extra_config";
    assert_eq!(
        mistakes(&whole(json!({}), extra)),
        [
            format!(
                "{place}.secondary_tiers[0].backpressure: alpha = 7: greater than 0 and at most 1 is allowed"
            ),
            format!(
                "{place}.backpressure: failure_threshold = true: a whole number from 1 to 4294967295, or none to \
                 ignore failures, is allowed"
            ),
            format!("{place}.backpressure: alpha = 9: greater than 0 and at most 1 is allowed"),
            format!(
                "{place}.secondary_tiers[2]: max_bytes = 1073741824: another tier of /b/ has 2147483648; the bound is \
                 the directory's"
            ),
        ]
    );
}

/// A prompt that the primary does not hold was found out when requests did not end.
#[test]
fn the_longest_prompt_is_held_against_the_slots_of_the_primary() {
    let model = |max_model_len| Model {
        max_model_len,
        bytes_per_token: 1000,
        block_tokens: 16,
    };
    // 16 tokens: 16,000 bytes in four pages
    let at = |len, extra| check(&Given::json(&whole(json!({}), extra)), Some(model(len)));
    let fits = at(1024, json!({"cpu_bytes_to_use": 64 * 16384}));
    let fit = fits.primary.unwrap();
    assert_eq!(
        (fit.slots, fit.slot_bytes, fit.prompt_slots, fit.fits()),
        (64, 16384, 64, true)
    );
    assert_eq!(fits.mistakes, []);
    let beyond = at(1040, json!({"cpu_bytes_to_use": 64 * 16384}));
    assert_eq!(beyond.mistakes.len(), 1);
    assert!(
        beyond.mistakes[0]
            .message
            .contains("takes 65; 1064960 or more is needed"),
        "{beyond:?}"
    );
    let chunks = at(
        1040,
        json!({"cpu_bytes_to_use": 64 * 16384, "blocks_per_chunk": 4}),
    );
    let fit = chunks.primary.unwrap();
    assert_eq!(
        (fit.slot_tokens, fit.slot_bytes, fit.slots, fit.prompt_slots),
        (64, 65536, 16, 16)
    );
    for odd in [json!(0), json!("x"), json!(null)] {
        assert!(at(1024, json!({"cpu_bytes_to_use": odd})).primary.is_none());
    }
    let small_bound = at(10, json!({"blocks_per_chunk": 1_u64 << 17}));
    assert!(
        small_bound
            .mistakes
            .iter()
            .any(|m| m.setting == "max_bytes" && m.message.contains("is below one block")),
        "{small_bound:?}"
    );
}

#[test]
fn no_text_is_too_odd_for_a_message() {
    let long = "x".repeat(10_000);
    for odd in [long.as_str(), "a\nb\u{7}c", "\u{1f600}", "", "'; drop"] {
        let stanza = whole(json!({"policy": odd, odd: 1}), json!({odd: odd}));
        let told = mistakes(&stanza);
        assert!(!told.is_empty());
        assert!(
            told.iter()
                .all(|m| m.len() < 1500 && !m.contains(char::is_control)),
            "{told:?}"
        );
    }
}

#[test]
fn a_layout_that_needs_a_bound_is_told_without_one() {
    let told = mistakes(&whole(json!({"layout": "pack", "max_bytes": null}), json!({})));
    assert!(
        told.len() == 1 && told[0].contains("layout pack: needs max_bytes"),
        "{told:?}"
    );
    let wrong = mistakes(&whole(json!({"layout": "pack", "max_bytes": "much"}), json!({})));
    assert!(
        wrong.len() == 1 && wrong[0].contains("max_bytes = \"much\""),
        "{wrong:?}"
    );
}
