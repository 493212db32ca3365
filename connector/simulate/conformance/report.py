"""The suite's report: one JSON document (`docs/conformance/report.schema.json`), which says of each field what it is."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import vllm

from kvtrail import __version__
from kvtrail.connector.known import has_other_writers, importable_as, overrides
from kvtrail.connector.simulate.check import features
from kvtrail.connector.simulate.check.report import NAME, as_failure, as_json, write_files
from kvtrail.connector.simulate.check.session import Checked, Found, Known
from kvtrail.connector.simulate.conformance import page
from kvtrail.connector.simulate.conformance.requirements import SUITE_VERSION, of_level
from kvtrail.connector.simulate.conformance.suite import Asked
from kvtrail.connector.simulate.conformance.verdict import Judged, Setting, judge, likeliest_first, overall
from kvtrail.connector.simulate.scenario import Scenario

SCHEMA_VERSION = 1


def known_from(reports: Iterable[Mapping[str, Any]]) -> Known:
    """The small scenarios of reports, by the ids of the failures that they show.

    Raises:
        ValueError: one of them is not a report; the text says why.
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


def as_dict(asked: Asked, checked: Checked) -> dict[str, Any]:
    """The report of a session, which may have been interrupted, as JSON-ready data. The files that a failure names are in the
    report's folder."""
    setting = Setting(
        claimed=asked.claimed,
        detected=features.detected(checked.reached),
        overrides_reset=overrides(asked.cls, "reset_cache"),
        other_writers=has_other_writers(asked.cls),
        not_driven={**asked.not_driven, **checked.refused},
    )
    results = judge(of_level(asked.level), checked, setting)
    verdict, inconclusive = overall(results, checked)
    return {
        "schema_version": SCHEMA_VERSION,
        "suite": {"name": "kvtrail conformance", "version": SUITE_VERSION, "kvtrail": __version__},
        "at": asked.at.isoformat(timespec="seconds"),
        "vllm": vllm.__version__,
        "python": platform.python_version(),
        "connector": _connector(asked),
        "settings": {
            "level": asked.level,
            "config": None if asked.config is None else dict(asked.config),
            "steps": asked.steps,
            "profiles": list(dict.fromkeys(checked.profiles)),
        },
        "seed": checked.seed,
        "steps": checked.steps.total(),
        "lookups": checked.lookups,
        "hits": checked.hits,
        "seconds": round(checked.seconds, 3),
        "workers": {
            "own": checked.fake_workers is None,
            "why_fake": checked.fake_workers,
            "loads_read": checked.loads_read,
            "blocks_compared": checked.blocks_compared,
        },
        "unprobed": checked.unprobed,
        "features": {"claimed": list(setting.claimed), "detected": list(setting.detected)},
        "verdict": verdict.value,
        "inconclusive": inconclusive,
        "requirements": [_requirement(each) for each in results],
        "failures": [_failure(each, checked, results) for each in checked.found],
        "not_driven": dict(setting.not_driven),
    }


def write(checked: Checked, report: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the report of a session, as JSON and as a page, and the files of each failure; returns the files.

    Raises:
        OSError: the folder cannot be written to.
    """
    return [*write_files({NAME: as_json(report)}, checked, folder), page.write(report, folder)]


def _requirement(judged: Judged) -> dict[str, Any]:
    of = judged.requirement
    return {
        "id": of.id,
        "level": of.level.value,
        "feature": None if of.feature is None else of.feature.value,
        "sentence": of.sentence,
        "source": of.source,
        "judged_by": list(of.judged_by),
        "result": judged.result.value,
        "reached": judged.reached,
        "why": judged.why,
        "failures": list(judged.failures),
    }


def _failure(found: Found, checked: Checked, results: Sequence[Judged]) -> dict[str, Any]:
    id = found.failure.id
    broken = likeliest_first((each.requirement for each in results if id in each.failures), id, checked.runs)
    return {**as_failure(found, checked), "requirements": [each.id for each in broken]}


def _connector(asked: Asked) -> dict[str, Any]:
    module, _, attribute = importable_as(asked.cls).partition(":")
    package = next(iter(metadata.packages_distributions().get(module.partition(".")[0], ())), None)
    version = None
    if package is not None:
        with suppress(metadata.PackageNotFoundError):
            version = metadata.version(package)
    return {"name": asked.connector, "module": module, "class": attribute, "package": package, "version": version}
