"""The suite's report, for machines: one JSON document (`docs/conformance/report.schema.json`)."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from importlib import metadata
from typing import Annotated, Any, Literal, TypedDict, cast

import vllm

from kvtrail import __version__
from kvtrail.connector.known import importable_as
from kvtrail.connector.simulate.check.report import again, names_of
from kvtrail.connector.simulate.check.session import Found, Known
from kvtrail.connector.simulate.conformance.requirements import SUITE_VERSION
from kvtrail.connector.simulate.conformance.suite import Asked, Conformance
from kvtrail.connector.simulate.conformance.verdict import Judged, likeliest_first
from kvtrail.connector.simulate.scenario import Scenario

SCHEMA_VERSION = 1
AskedLevel = Literal["core", "extended", "all"]


class Suite(TypedDict):
    """What made the report."""

    name: str
    version: Annotated[str, "Of the list of requirements: reports of one version can be compared cell by cell."]
    kvtrail: Annotated[str, "The version of the package."]


Connector = TypedDict(
    "Connector",
    {
        "name": Annotated[str, "As it was asked for."],
        "module": str,
        "class": str,
        "package": Annotated[str | None, "The distribution that its module belongs to, if it belongs to one."],
        "version": Annotated[str | None, "Of that distribution."],
    },
)


class Settings(TypedDict):
    """What was asked for."""

    level: Annotated[AskedLevel, "core: of every connector; extended: of its features."]
    config: Annotated[dict[str, Any] | None, "kv_connector_extra_config; null: each workload has drawn its own."]
    steps: Annotated[int, "Scheduling steps."]
    profiles: Annotated[list[str], "The kinds of workloads, in order."]


class Workers(TypedDict):
    """Who copied KV."""

    own: Annotated[bool, "The connector's own workers ran."]
    why_fake: Annotated[str | None, "Why fakes stood in for them."]
    loads_read: Annotated[int, "Loads with bytes that were checked."]
    blocks_compared: Annotated[int, "Blocks with bytes that were compared before a step that reads them."]


class Features(TypedDict):
    """Beyond the core."""

    claimed: Annotated[list[str], "By its interfaces, the methods that it overrides, and what is declared of it."]
    detected: Annotated[list[str], "Seen in a run."]


class RequirementResult(TypedDict):
    """A requirement, and what the session says of it."""

    id: str
    level: Literal["core", "extended"]
    feature: Annotated[str | None, "The feature that an extended requirement belongs to."]
    sentence: str
    source: str
    judged_by: Annotated[list[str], "Rules (docs/rules.md) and other judges (docs/check.md)."]
    result: Literal["passed", "failed", "not exercised"]
    reached: Annotated[int, "How often it was at risk, in runs at which one of its judges has looked."]
    why: Annotated[str | None, "Why it was not exercised."]
    failures: Annotated[list[str], "The ids of the failures that break it."]


class _Failure(TypedDict):
    id: str
    requirements: Annotated[list[str], "The ids of those that it breaks, the likeliest to be its cause first."]
    text: Annotated[str, "The arithmetic in words, with the numbers of the shrunk workload."]
    details: Annotated[str, "Of a crash or a hang: the traceback, the last events, and what each request waits for."]
    flaky: Annotated[bool, "It did not fail each time when it was run again."]
    times: Annotated[int, "How often it was seen."]
    profile: Annotated[str, "The kind of workload in which it was seen first."]
    seed: Annotated[int, "Of that workload."]
    config: Annotated[dict[str, Any], "kv_connector_extra_config there."]
    again: Annotated[str, "The command that shows it again."]
    scenario: Annotated[dict[str, Any], "The shrunk workload."]
    trace: Annotated[str, "The file beside the report with its trace, for `kvtrail audit` and `kvtrail replay`."]
    test: Annotated[str, "The file beside the report with a pytest that fails until the connector is mended."]


class Failure(_Failure, total=False):
    """A failure, each kind once, shrunk."""

    found_after: Annotated[int, "Scheduling steps of the session when it was found; older reports lack it."]


class Report(TypedDict):
    """What `kvtrail conformance` says of a connector."""

    schema_version: int
    suite: Suite
    at: Annotated[str, "When the session began, ISO 8601."]
    vllm: str
    python: str
    connector: Connector
    settings: Settings
    seed: Annotated[int, "The first seed: the same seed gives the same workloads on each machine."]
    steps: Annotated[int, "Scheduling steps that were made."]
    lookups: int
    hits: Annotated[int, "Lookups that answered with tokens."]
    seconds: Annotated[float, "How long it took, shrinking included."]
    workers: Workers
    unprobed: Annotated[str | None, "Why plans and the store could not be seen; null: a probe shows them."]
    features: Features
    verdict: Literal["passed", "failed", "inconclusive"]
    inconclusive: Annotated[list[str], "Why nothing found proves nothing, in sentences."]
    requirements: list[RequirementResult]
    failures: list[Failure]
    not_driven: Annotated[dict[str, str], "Why kinds of workloads were not driven, by their name."]


def known_from(reports: Iterable[Mapping[str, Any]]) -> Known:
    """The small scenarios of reports, by the ids of the failures that they show.

    Raises:
        ValueError: one is no report; the text says why.
    """
    known: dict[str, list[Scenario]] = {}
    try:
        for report in reports:
            for failure in report["failures"]:
                small, same = Scenario.from_dict(failure["scenario"]), known.setdefault(failure["id"], [])
                if not failure["flaky"] and small not in same:
                    same.append(small)
    except (TypeError, KeyError) as wrong:
        raise ValueError(f"not a report of the suite: {wrong}") from wrong
    return known


def as_dict(of: Conformance) -> Report:
    """JSON-ready data. Files that a failure names lie beside the report."""
    checked = of.checked
    return Report(
        schema_version=SCHEMA_VERSION,
        suite=Suite(name="kvtrail conformance", version=SUITE_VERSION, kvtrail=__version__),
        at=of.asked.at.isoformat(timespec="seconds"),
        vllm=vllm.__version__,
        python=platform.python_version(),
        connector=_connector(of.asked),
        settings=Settings(
            level=cast(AskedLevel, of.asked.level),
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
        why=judged.why,
        failures=list(judged.failures),
    )


def _failure(found: Found, of: Conformance) -> Failure:
    trace, test = names_of(found)
    id = found.failure.id
    broken = likeliest_first((each.requirement for each in of.results if id in each.failures), id, of.checked.runs)
    return Failure(
        id=id,
        requirements=[each.id for each in broken],
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
        found_after=found.after,
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
