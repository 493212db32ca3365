"""The suite's report for a terminal. The requirements that were not exercised, and why, come before the verdict."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from kvtrail.connector.simulate.conformance.verdict import Result
from kvtrail.tracer.model.words import some

Report = Mapping[str, Any]
_MOST_DETAILS = 20
"""Maximum number of lines of a failure's details; the JSON report has all of them."""


def as_text(report: Report) -> str:
    """The report as text: the run, the failures, the requirements that were not exercised, and finally the verdict."""
    parts = [_ran(report), *(_failed(each, report) for each in report["failures"])]
    if not_exercised := _of(report, Result.NOT_EXERCISED):
        parts.append(_not_exercised(not_exercised))
    if report["not_driven"]:
        reasons: dict[str, list[str]] = {}
        for profile, why in report["not_driven"].items():
            reasons.setdefault(why, []).append(profile)
        parts.append("\n".join(f"Not driven: {', '.join(profiles)}: {why}." for why, profiles in reasons.items()))
    return "\n\n".join([*parts, _verdict(report)])


def _ran(report: Report) -> str:
    connector, workers, features = report["connector"], report["workers"], report["features"]
    package = f" of {connector['package']} {connector['version']}" if connector["package"] else ""
    ran = "Its own workers ran" if workers["own"] else f"Its workers were fakes, since {workers['why_fake']}"
    claimed, seen = (", ".join(features[which]) or "nothing" for which in ("claimed", "detected"))
    return (
        f"{connector['name']}{package}, vLLM {report['vllm']}, level {report['settings']['level']}:"
        f" {some(report['steps'], 'scheduling step')}, {some(report['lookups'], 'lookup')} with"
        f" {some(report['hits'], 'hit')}, in {report['seconds']:.0f} s; seeds from {report['seed']}.\n"
        f"{ran}: {some(workers['blocks_compared'], 'block')} compared, after {some(workers['loads_read'], 'load')}.\n"
        f"It claims: {claimed}. Seen: {seen}."
    )


def _failed(failure: Report, report: Report) -> str:
    flaky = "\n  FLAKY: it did not fail each time when it was run again." if failure["flaky"] else ""
    sentences = {each["id"]: each["sentence"] for each in report["requirements"]}
    broken = "\n".join(
        textwrap.fill(f"breaks {each}: {sentences[each]}", 116, initial_indent="  ", subsequent_indent="    ")
        for each in failure["requirements"]
    )
    details = failure["details"].splitlines()
    shown = "\n".join(details[:_MOST_DETAILS] + (["..."] if len(details) > _MOST_DETAILS else []))
    found = f" (found after {some(failure['found_after'], 'step')})"
    parts = [f"FAILED {failure['id']}{found}{flaky}", textwrap.indent(failure["text"], "  "), broken]
    parts += [textwrap.indent(shown, "    ")] if details else []
    return "\n".join([*parts, f"  again: {failure['again']}", f"  trace: {failure['trace']}; test: {failure['test']}"])


def _not_exercised(requirements: Sequence[Report]) -> str:
    """Each reason once, with the requirements that were not exercised for it."""
    reasons: dict[str, list[str]] = {}
    for each in requirements:
        reasons.setdefault(each["why"] or "", []).append(each["id"])
    lines = [f"Not exercised, {some(len(requirements), 'requirement')}:"]
    for why, ids in reasons.items():
        lines.append(textwrap.fill(f"{', '.join(ids)}: {why}", 116, initial_indent="  - ", subsequent_indent="    "))
    return "\n".join(lines)


def _verdict(report: Report) -> str:
    passed, failed, not_exercised = (len(_of(report, each)) for each in Result)
    numbers = f"{passed} passed, {failed} failed, {not_exercised} not exercised"
    reasons = (f"- {reason}" for reason in report["inconclusive"])
    return "\n".join([f"{report['verdict'].upper()}: {numbers}.", *reasons])


def _of(report: Report, result: Result) -> list[Report]:
    return [each for each in report["requirements"] if each["result"] == result]
