"""Priorities and rewrites that InferenceObjectives and InferenceModelRewrites give."""

from typing import Any

import msgspec
import pytest

from gateway.discovery.kubernetes.api_objects import InferenceModelRewrite, InferenceObjective
from gateway.discovery.kubernetes.inference_objects import model_rewrites, priorities
from tests.support.kube_api import Object, model_rewrite, objective, rewrite_rule


def found_priorities(*objects: Object) -> dict[str, int]:
    return priorities(msgspec.convert(list(objects), list[InferenceObjective]), "vllm")


def found_rewrites(*objects: Object) -> tuple[dict[str, dict[str, int]], dict[str, int] | None, str]:
    found = model_rewrites(msgspec.convert(list(objects), list[InferenceModelRewrite]), "vllm")
    others = found.rewrites.others
    named = {name: models.weights for name, models in found.rewrites.by_name.items()}
    return named, others.weights if others else None, found.refusal


def test_an_objective_has_a_priority_by_its_name() -> None:
    assert found_priorities(objective("chat", 10), objective("batch", -5), objective("plain", None)) == {
        "batch": -5,
        "chat": 10,
        "plain": 0,
    }


@pytest.mark.parametrize(
    "reference",
    [
        None,
        {"name": "other"},
        {"name": "vllm", "group": "inference.networking.x-k8s.io"},
        {"name": "vllm", "kind": "Service"},
    ],
    ids=["none", "another pool", "another group", "another kind"],
)
def test_objects_of_others_give_nothing(reference: dict[str, Any] | None) -> None:
    one, two = objective("chat", 10), model_rewrite("r", rewrite_rule("a", to={"b": 1}))
    for each in (one, two):
        each["spec"]["poolRef"] = reference
    assert (found_priorities(one), found_rewrites(two)) == ({}, ({}, None, ""))


def test_objects_that_are_being_deleted_give_nothing() -> None:
    one, two = objective("chat", 10), model_rewrite("r", rewrite_rule("a", to={"b": 1}))
    for each in (one, two):
        each["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert (found_priorities(one), found_rewrites(two)) == ({}, ({}, None, ""))


def test_a_priority_beyond_the_api_s_is_left_out() -> None:
    assert found_priorities(objective("chat", 2**40)) == {}


def test_rules_name_models_or_all_others() -> None:
    found = found_rewrites(
        model_rewrite(
            "r", rewrite_rule("a", "b", to={"v1": 90, "v2": 10}), rewrite_rule(to={"base": None}), created="1"
        )
    )
    assert found == ({"a": {"v1": 90, "v2": 10}, "b": {"v1": 90, "v2": 10}}, {"base": 1}, "")


def test_the_oldest_object_counts_and_within_it_the_first_rule() -> None:
    new = model_rewrite("a", rewrite_rule("m", to={"new": 1}), rewrite_rule(to={"x": 1}), created="2026-02")
    old = model_rewrite("b", rewrite_rule("m", to={"old": 1}), rewrite_rule("m", to={"y": 1}), created="2026")
    assert found_rewrites(new, old) == ({"m": {"old": 1}}, {"x": 1}, "")


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (rewrite_rule("a"), "has no target"),
        (rewrite_rule("a", to={"b": 0}), "has the weight 0"),
        (rewrite_rule("", to={"b": 1}), "names a model by ''"),
        (rewrite_rule("a", to={"": 1}), "names a model by ''"),
        (rewrite_rule("a", to={"b\n": 1}), "names a model by 'b"),
        (rewrite_rule("a" * 300, to={"b": 1}), "names a model by 'aaa"),
        ({"matches": [{"model": {"type": "Prefix", "value": "a"}}]}, "matches in a way that is not known"),
        ({"matches": [{"header": "x"}], "targets": [{"modelRewrite": "b"}]}, "matches in a way that is not"),
    ],
    ids=["no target", "weight", "empty", "empty target", "control", "long", "prefix", "header"],
)
def test_a_rule_that_cannot_be_used_is_named_and_the_others_count(rule: Object, words: str) -> None:
    named, others, refusal = found_rewrites(model_rewrite("r", rule, rewrite_rule("c", to={"d": 1})))
    assert (named, others) == ({"c": {"d": 1}}, None)
    assert refusal.startswith(f"InferenceModelRewrite r: a rule {words}")


def test_null_fields_are_none() -> None:
    bare = {"metadata": {"name": "r"}, "spec": {"poolRef": {"name": "vllm", "group": None}, "rules": None}}
    assert found_rewrites(bare) == ({}, None, "")
