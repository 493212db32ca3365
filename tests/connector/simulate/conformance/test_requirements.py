"""The list of requirements is whole: each judge belongs to one of them, and each of them names what exists."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from kvtrail.connector import simulate
from kvtrail.connector.simulate.check import features
from kvtrail.connector.simulate.check.coverage import POINTS
from kvtrail.connector.simulate.check.features import Feature
from kvtrail.connector.simulate.check.profiles import PAIR_PROFILES, PROFILES
from kvtrail.connector.simulate.conformance.requirements import REQUIREMENTS, Level, Requirement, of_level
from kvtrail.connector.simulate.conformance.verdict import NEEDED, OTHERS, RULES, judges_of
from kvtrail.connector.simulate.judges.failure import CRASH, HANG, RULE, Failure
from kvtrail.tracer.rules import pages

SIMULATE = Path(simulate.__file__).parent
VLLM = (
    "vllm.distributed.kv_transfer.kv_connector.v1.base", "vllm.distributed.kv_transfer.kv_connector.utils",
    "vllm.distributed.kv_transfer.kv_connector.v1.nixl", "vllm.v1.core.sched.scheduler", "vllm.v1.core.sched.output",
    "vllm.v1.core.kv_cache_manager", "vllm.v1.core.kv_cache_coordinator", "vllm.v1.core.kv_cache_utils",
    "vllm.v1.engine.core", "vllm.v1.engine.input_processor", "vllm.v1.request",
)  # fmt: skip
"""Where the names of vLLM that sources cite are found."""
EACH = pytest.mark.parametrize("requirement", REQUIREMENTS, ids=lambda each: each.id)


def test_ids_are_unique_and_say_the_level() -> None:
    ids = [each.id for each in REQUIREMENTS]
    assert len(set(ids)) == len(ids) >= 45
    assert all(re.fullmatch(r"(core|extended)(\.[a-z]+(-[a-z]+)*){2}", each) for each in ids)
    assert len({each.sentence for each in REQUIREMENTS if not each.covers_all}) == len(
        [each for each in REQUIREMENTS if not each.covers_all]
    )


def test_each_judge_belongs_to_a_requirement() -> None:
    judges = {judge for each in REQUIREMENTS for judge in each.judged_by}
    assert {judge if judge in OTHERS else judge.partition("/")[0] for judge in judges} == pages.files().keys() | OTHERS


def test_each_feature_and_each_needed_subject_has_requirements() -> None:
    assert {each.feature for each in of_level("extended")} == set(Feature)
    assert {each.subject for each in of_level("core")} > set(NEEDED)
    assert [*of_level("core"), *of_level("extended")] == list(of_level("all")) == list(REQUIREMENTS)


@EACH
def test_a_requirement_names_what_exists(requirement: Requirement) -> None:
    assert requirement.reached_by
    assert set(requirement.reached_by) <= POINTS.keys()
    assert requirement.judged_by
    assert {
        judge if judge in OTHERS else judge.partition("/")[0] for judge in requirement.judged_by
    } <= RULES.keys() | OTHERS
    assert (requirement.feature is None) == (requirement.level is Level.CORE)
    assert requirement.sentence.endswith(".")
    assert requirement.source


@EACH
def test_a_source_can_be_looked_up(requirement: Requirement) -> None:
    """An issue by its address; a name or words of vLLM in vLLM."""
    source = requirement.source
    for repository, number, address in re.findall(r"(\S+) #(\d+) \((\S+?)\)", source):
        assert re.fullmatch(rf"https://github\.com/\S+/{repository}/(pull|issues)/{number}", address, re.IGNORECASE)
    if not source.startswith("vLLM 0.32"):
        assert "https://" in source or source.startswith("kvtrail")
        return
    modules, text = _vllm()
    for quoted in re.findall("“(.+?)”", source):
        assert _words(quoted) in text, quoted
    for name in re.findall(r"`([A-Za-z_][\w.]*)`", source):
        assert name.startswith("kv_connector.") or _found(name, modules, text), name


@cache
def _vllm() -> tuple[list[ModuleType], str]:
    modules = [importlib.import_module(name) for name in VLLM]
    return modules, _words("".join(inspect.getsource(module) for module in modules))


def _words(text: str) -> str:
    """Without line breaks and marks, which docstrings and quotations place differently."""
    return re.sub(r"-\s+", "-", " ".join(re.sub(r"[`'\"#]", "", text).split()))


def _found(name: str, modules: list[ModuleType], text: str) -> bool:
    """Whether `Class.member`, `function` or an argument of that name is in vLLM."""
    first, *below = name.split(".")
    for module in modules:
        thing = getattr(module, first, None)
        for each in below:
            thing = getattr(thing, each, None)
        if thing is not None:
            return True
    return not below and re.search(rf"\b{re.escape(first)}\b", text) is not None


def test_each_observation_has_a_judge() -> None:
    """Whatever kind of observation a module makes belongs to a judge, and so to a requirement."""
    kinds = {CRASH, HANG}
    for path in SIMULATE.rglob("*.py"):
        name = ".".join(("kvtrail.connector.simulate", *path.relative_to(SIMULATE).with_suffix("").parts))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _called(node.func) in ("Failure", "_note") and node.args:
                first = node.args[0]
                if isinstance(first, ast.Name) and first.id.isupper():
                    kinds.add(getattr(importlib.import_module(name), first.id))
    assert len(kinds) >= 6
    for kind in kinds - {RULE}:
        assert judges_of(Failure(kind, "anything", ""))[0] in OTHERS


def _called(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


@pytest.mark.parametrize(
    ("kind", "judges", "shown"),
    [
        (RULE, ("stale-lookup", "stale-lookup/early"), "rule: stale-lookup"),
        ("rest/blocks", ("rest/blocks",), "rest: stale-lookup"),
        (CRASH, ("crash",), "crash: stale-lookup"),
    ],
)
def test_a_failure_is_its_judges(kind: str, judges: tuple[str, ...], shown: str) -> None:
    failure = Failure(kind, "stale-lookup", "", where="early")
    assert judges_of(failure) == judges
    assert failure.id == shown


def test_profiles_of_features_exist() -> None:
    assert features.NEEDS.keys() <= PROFILES.keys() | PAIR_PROFILES.keys()
