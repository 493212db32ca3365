"""The suite's report, for machines: one JSON document (`docs/conformance/report.schema.json`)."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any, TypedDict

import vllm

from kvtrail import __version__
from kvtrail.connector.known import importable_as
from kvtrail.connector.simulate.check.report import again
from kvtrail.connector.simulate.check.session import Found
from kvtrail.connector.simulate.conformance.requirements import SUITE_VERSION
from kvtrail.connector.simulate.conformance.suite import Asked, Conformance
from kvtrail.connector.simulate.conformance.verdict import Judged
from kvtrail.connector.simulate.regression import slug

SCHEMA_VERSION = 1


class Suite(TypedDict):
    name: str
    version: str
    kvtrail: str


Connector = TypedDict(
    "Connector", {"name": str, "module": str, "class": str, "package": str | None, "version": str | None}
)


class Settings(TypedDict):
    level: str
    config: dict[str, Any] | None
    steps: int
    profiles: list[str]


class Workers(TypedDict):
    own: bool
    why_fake: str | None
    loads_read: int
    blocks_compared: int


class Features(TypedDict):
    claimed: list[str]
    detected: list[str]


class RequirementResult(TypedDict):
    id: str
    level: str
    feature: str | None
    sentence: str
    source: str
    judged_by: list[str]
    result: str
    reached: int
    judged: int
    why: str | None
    failures: list[str]


class Failure(TypedDict):
    id: str
    requirements: list[str]
    text: str
    details: str
    flaky: bool
    times: int
    profile: str
    seed: int
    config: dict[str, Any]
    again: str
    scenario: dict[str, Any]
    trace: str
    test: str


class Report(TypedDict):
    schema_version: int
    suite: Suite
    at: str
    vllm: str
    python: str
    connector: Connector
    settings: Settings
    seed: int
    steps: int
    lookups: int
    hits: int
    seconds: float
    workers: Workers
    unprobed: str | None
    features: Features
    verdict: str
    inconclusive: list[str]
    requirements: list[RequirementResult]
    failures: list[Failure]
    not_driven: dict[str, str]


def as_dict(of: Conformance) -> Report:
    """JSON-ready data. `trace` and `test` of a failure are files beside the report."""
    checked = of.checked
    return Report(
        schema_version=SCHEMA_VERSION,
        suite=Suite(name="kvtrail conformance", version=SUITE_VERSION, kvtrail=__version__),
        at=of.asked.at.isoformat(timespec="seconds"),
        vllm=vllm.__version__,
        python=platform.python_version(),
        connector=_connector(of.asked),
        settings=Settings(
            level=of.asked.level,
            config=None if of.asked.config is None else dict(of.asked.config),
            steps=of.asked.steps,
            profiles=list(checked.profiles),
        ),
        seed=checked.seed,
        steps=checked.steps.total(),
        lookups=checked.lookups,
        hits=checked.hits,
        seconds=round(checked.seconds, 3),
        workers=Workers(
            own=checked.fake_workers is None,
            why_fake=checked.fake_workers,
            loads_read=checked.loads_read,
            blocks_compared=checked.blocks_compared,
        ),
        unprobed=checked.unprobed,
        features=Features(claimed=list(of.setting.claimed), detected=list(of.setting.detected)),
        verdict=of.verdict.value,
        inconclusive=list(of.inconclusive),
        requirements=[_requirement(each) for each in of.results],
        failures=[_failure(each, of) for each in checked.found],
        not_driven=dict(of.setting.not_driven),
    )


def files_of(found: Found) -> tuple[str, str]:
    """The names of a failure's trace and of its test."""
    name = slug(found.failure.what)
    return f"{name}.jsonl", f"test_{name.replace('-', '_')}.py"


def _requirement(judged: Judged) -> RequirementResult:
    of = judged.requirement
    return RequirementResult(
        id=of.id,
        level=of.level.value,
        feature=None if of.feature is None else of.feature.value,
        sentence=of.sentence,
        source=of.source,
        judged_by=list(of.judged_by),
        result=judged.result.value,
        reached=judged.reached,
        judged=judged.judged,
        why=judged.why,
        failures=list(judged.failures),
    )


def _failure(found: Found, of: Conformance) -> Failure:
    trace, test = files_of(found)
    id = found.failure.id
    return Failure(
        id=id,
        requirements=[each.requirement.id for each in of.results if id in each.failures],
        text=found.failure.text,
        details=found.failure.details,
        flaky=found.small.is_flaky,
        times=of.checked.repeated[id] + 1,
        profile=found.profile,
        seed=found.seed,
        config=dict(found.subject.extra),
        again=again(found),
        scenario=found.small.scenario.as_dict(),
        trace=trace,
        test=test,
    )


def _connector(asked: Asked) -> Connector:
    module, _, attribute = importable_as(asked.cls).partition(":")
    top = module.partition(".")[0]
    package = next(iter(metadata.packages_distributions().get(top, ())), None)
    return Connector(
        {
            "name": asked.connector,
            "module": module,
            "class": attribute,
            "package": package,
            "version": None if package is None else _version(package),
        }
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
