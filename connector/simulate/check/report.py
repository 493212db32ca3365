"""The reports of a session: for the terminal, as JSON, as Markdown for a pull request, and as JUnit's XML for CI."""

from __future__ import annotations

import json
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvtrail.connector.known.probe import NO_PROBE
from kvtrail.connector.simulate.check.pair_profiles import PAIR_PROFILES
from kvtrail.connector.simulate.check.points import POINTS
from kvtrail.connector.simulate.check.profiles import PROFILES
from kvtrail.connector.simulate.check.session import Checked, Found
from kvtrail.connector.simulate.regression import as_pytest, slug
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.model.findings import Verdict
from kvtrail.tracer.model.words import count, some

NOT_REACHED = "the session ended before it came to this profile"
_DESCRIBED = {name: draw.__doc__ for name, draw in (*PROFILES.items(), *PAIR_PROFILES.items())}
JUNIT, MARKDOWN = "junit.xml", "report.md"


def as_text(checked: Checked) -> str:
    """For a terminal."""
    parts = [_summary(checked), *_limits(checked)]
    if not checked.found:
        return "\n".join([*parts, *_verdict(checked)])
    parts.append(f"{some(len(checked.found), 'failure')} found:")
    for each in checked.found:
        more = checked.repeated[each.failure.id]
        parts.append(
            f"\n{each.failure.id}\n  {_size(each)}{f' Seen {more + 1} times.' if more else ''}\n  {each.failure.text}\n"
            f"  again: {again(each)}"
        )
        if each.failure.details:
            parts.append(textwrap.indent(each.failure.details, "  "))
    return "\n".join(parts)


def as_dict(checked: Checked) -> dict[str, Any]:
    """JSON-ready data."""
    return {
        "connector": checked.connector,
        "seed": checked.seed,
        "seconds": round(checked.seconds, 3),
        "trials": dict(checked.trials),
        "steps": dict(checked.steps),
        "lookups": checked.lookups,
        "hits": checked.hits,
        "inconclusive": checked.inconclusive,
        "refused": checked.refused,
        "loads_read": checked.loads_read,
        "blocks_compared": checked.blocks_compared,
        "fake_workers": checked.fake_workers,
        "unprobed": checked.unprobed,
        "reached": {point: checked.reached[point] for point in POINTS},
        "checks": [{"rule": r, "verdict": v.value, "count": n} for (r, v), n in sorted(checked.checks.items())],
        "failures": [
            {
                "id": each.failure.id,
                "text": each.failure.text,
                "details": each.failure.details,
                "flaky": each.small.is_flaky,
                "found_after": each.after,
                "seen_again": [each.small.seen, each.small.runs],
                "times": checked.repeated[each.failure.id] + 1,
                "profile": each.profile,
                "seed": each.seed,
                "config": dict(each.subject.extra),
                "again": again(each),
                "scenario": each.small.scenario.as_dict(),
            }
            for each in checked.found
        ],
    }


def as_markdown(checked: Checked, files: Mapping[str, tuple[str, str]]) -> str:
    """For a pull request or an issue; `files` are the names of each failure's trace and test, by its id."""
    parts = [f"# kvtrail check: {checked.connector}", _summary(checked), *_limits(checked)]
    if not checked.found:
        parts += _verdict(checked)
    for each in checked.found:
        trace, test = files[each.failure.id]
        parts.append(
            f"## {each.failure.id}\n\n{each.failure.text}\n\n{_size(each)}\n\n"
            f"- again: `{again(each)}`\n- trace: [{trace}]({trace}) (`kvtrail audit {trace}`)\n"
            f"- test: [{test}]({test})"
        )
        if each.failure.details:
            parts.append(f"```\n{each.failure.details}\n```")
    trials = [(name, count(checked.trials[name]), count(checked.steps[name])) for name in checked.trials]
    rules = sorted({rule for rule, _ in checked.checks})
    checks = [(rule, *(count(checked.checks[rule, verdict]) for verdict in Verdict)) for rule in rules]
    parts += ["## What was run\n\n" + _table(("profile", "runs", "steps"), trials)]
    points = [(point, meaning, count(checked.reached[point])) for point, meaning in POINTS.items()]
    parts += ["## What was reached\n\n" + _table(("point", "meaning", "times"), points)]
    parts += ["## What was checked\n\n" + _table(("rule", *(verdict.value for verdict in Verdict)), checks)]
    return "\n\n".join(parts) + "\n"


def as_junit(checked: Checked) -> str:
    """JUnit's XML: a test case for each profile, which fails with the failures that it found first."""
    profiles = checked.profiles or tuple(checked.trials)
    found = {profile: [each for each in checked.found if each.profile == profile] for profile in profiles}
    suite = ET.Element(
        "testsuite",
        name=f"kvtrail check {checked.connector}",
        tests=str(len(found)),
        failures=str(sum(bool(each) for each in found.values())),
        errors="0",
        time=f"{checked.seconds:.3f}",
    )
    for reason in checked.inconclusive:
        properties = suite.find("properties")
        properties = ET.SubElement(suite, "properties") if properties is None else properties
        ET.SubElement(properties, "property", name="inconclusive", value=reason)
    for profile, failed in found.items():
        case = ET.SubElement(suite, "testcase", classname=checked.connector, name=profile)
        if not checked.trials[profile]:
            ET.SubElement(case, "skipped", message=checked.refused.get(profile, NOT_REACHED))
        if failed:
            text = "\n\n".join(
                "\n".join(filter(None, (each.failure.id, each.failure.text, again(each), each.failure.details)))
                for each in failed
            )
            ET.SubElement(case, "failure", message="; ".join(each.failure.id for each in failed)).text = text
        ET.SubElement(
            case, "system-out"
        ).text = f"{checked.trials[profile]} runs, {checked.steps[profile]} steps. {_DESCRIBED[profile]}"
    ET.indent(suite)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def write(checked: Checked, folder: Path) -> list[Path]:
    """Write the Markdown and JUnit reports, and the trace and the test of each failure; returns the files.

    Raises:
        OSError: the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    files: dict[str, tuple[str, str]] = {}
    for each in checked.found:
        files[each.failure.id] = names_of(each)
        for name, text in texts_of(each).items():
            (folder / name).write_text(text, encoding="utf-8")
            written.append(folder / name)
    for name, text in ((MARKDOWN, as_markdown(checked, files)), (JUNIT, as_junit(checked))):
        (folder / name).write_text(text, encoding="utf-8")
        written.append(folder / name)
    return written


def names_of(found: Found) -> tuple[str, str]:
    """The names of the files with a failure's trace and its test."""
    name = slug(found.failure.what)
    return f"{name}.jsonl", f"test_{name.replace('-', '_')}.py"


def texts_of(found: Found) -> dict[str, str]:
    """A failure's files, under their names: its trace and its test."""
    trace, test = names_of(found)
    small = found.small
    return {
        trace: "".join(otlp_json.spans_to_json_lines(small.played.spans)),
        test: as_pytest(small.scenario, connector=found.subject, failure=found.failure),
    }


def _summary(checked: Checked) -> str:
    rate = checked.steps.total() / checked.seconds if checked.seconds else 0
    shrinking = ", shrinking included" if checked.found else ""
    return (
        f"{checked.connector}: {some(checked.trials.total(), 'run')}, {some(checked.steps.total(), 'scheduling step')},"
        f" {some(checked.lookups, 'lookup')} with {some(checked.hits, 'hit')}, in {checked.seconds:.0f} s{shrinking}"
        f" ({count(rate)} steps/s); seeds from {checked.seed}."
    )


def _limits(checked: Checked) -> list[str]:
    """What was not looked at, in sentences."""
    limits = []
    if checked.unprobed is not None:
        plans = "plans, evictions and chunk keys were not checked (docs/connectors.md says how to write a probe)"
        limits.append(f"No probe: {plans}." if checked.unprobed == NO_PROBE else f"Probe: {checked.unprobed}; {plans}.")
    compared = (
        f"{some(checked.blocks_compared, 'block')} compared, bit by bit, before a step read them, after"
        f" {some(checked.loads_read, 'load')}."
    )
    if not checked.trials:
        limits.append("Nothing ran.")
    elif checked.fake_workers is None:
        limits.append(f"Its own workers ran: {compared}")
    elif any(name in PAIR_PROFILES for name in checked.trials):
        limits.append(
            f"Its own workers ran where two engines handed over to each other, and fakes elsewhere, since"
            f" {checked.fake_workers}: {compared}"
        )
    elif checked.blocks_compared:
        limits.append(f"Its workers were fakes, since {checked.fake_workers}. They copied by its plans: {compared}")
    else:
        limits.append(f"Its workers were fakes, since {checked.fake_workers}: bytes were not checked.")
    for reason in dict.fromkeys(checked.refused.values()):
        profiles = [profile for profile, why in checked.refused.items() if why == reason]
        limits.append(f"Not driven: {', '.join(profiles)}: {reason}")
    return limits


def _verdict(checked: Checked) -> list[str]:
    """Nothing was found: whether that proves anything."""
    if not checked.inconclusive:
        return ["Nothing found."]
    return ["Nothing found, but this is inconclusive:", *(f"- {reason}" for reason in checked.inconclusive)]


def _size(found: Found) -> str:
    small = found.small
    again = f" FLAKY: run again, it failed in {small.seen} of {small.runs} runs." if small.is_flaky else ""
    return (
        f"With {some(len(small.scenario.everybody), 'request')} in {some(small.played.steps, 'step')};"
        f" found first after {some(found.after, 'step')}, with {count(len(found.original.everybody))}, profile"
        f" {found.profile}, seed {found.seed}.{again}"
    )


def again(found: Found) -> str:
    """The command that shows a failure again."""
    fakes = " --fake-workers" if found.fakes_asked_for else ""
    config = "" if not found.subject.extra else f" --config '{json.dumps(dict(found.subject.extra), sort_keys=True)}'"
    return f"kvtrail check '{found.subject.name}' --profile {found.profile} --seed {found.seed} --runs 1{config}{fakes}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
