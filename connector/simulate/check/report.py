"""The reports of a session: for the terminal, as JSON, as Markdown for a pull request, and as JUnit's XML for CI."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvtrail.connector.simulate.check.profiles import PROFILES
from kvtrail.connector.simulate.check.session import Checked, Found
from kvtrail.connector.simulate.regression import as_pytest, slug
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.model.findings import Verdict
from kvtrail.tracer.model.words import count, some

JUNIT, MARKDOWN = "junit.xml", "report.md"


def as_text(checked: Checked) -> str:
    """For a terminal."""
    if not checked.found:
        return f"{_summary(checked)}\nNothing found."
    parts = [_summary(checked), f"{some(len(checked.found), 'failure')} found:"]
    for each in checked.found:
        more = checked.repeated[each.failure.id]
        parts.append(
            f"\n{each.failure.id}\n  {_size(each)}{f' Seen {more + 1} times.' if more else ''}\n  {each.failure.text}\n"
            f"  again: {_again(each)}"
        )
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
        "checks": [{"rule": r, "verdict": v.value, "count": n} for (r, v), n in sorted(checked.checks.items())],
        "failures": [
            {
                "id": each.failure.id,
                "text": each.failure.text,
                "times": checked.repeated[each.failure.id] + 1,
                "profile": each.profile,
                "seed": each.seed,
                "config": dict(each.subject.extra),
                "again": _again(each),
                "scenario": each.scenario.as_dict(),
            }
            for each in checked.found
        ],
    }


def as_markdown(checked: Checked, files: Mapping[str, tuple[str, str]]) -> str:
    """For a pull request or an issue; `files` are the names of each failure's trace and test, by its id."""
    parts = [f"# kvtrail check: {checked.connector}", _summary(checked)]
    if not checked.found:
        parts.append("Nothing found.")
    for each in checked.found:
        trace, test = files[each.failure.id]
        parts.append(
            f"## {each.failure.id}\n\n{each.failure.text}\n\n{_size(each)}\n\n"
            f"- again: `{_again(each)}`\n- trace: [{trace}]({trace}) (`kvtrail audit {trace}`)\n- test: [{test}]({test})"
        )
    trials = [(name, count(checked.trials[name]), count(checked.steps[name])) for name in checked.trials]
    rules = sorted({rule for rule, _ in checked.checks})
    checks = [(rule, *(count(checked.checks[rule, verdict]) for verdict in Verdict)) for rule in rules]
    parts += ["## What was run\n\n" + _table(("profile", "trials", "steps"), trials)]
    parts += ["## What was checked\n\n" + _table(("rule", *(verdict.value for verdict in Verdict)), checks)]
    return "\n\n".join(parts) + "\n"


def as_junit(checked: Checked) -> str:
    """JUnit's XML: a test case for each profile, which fails with the failures that it found first."""
    found = {profile: [each for each in checked.found if each.profile == profile] for profile in checked.trials}
    suite = ET.Element(
        "testsuite",
        name=f"kvtrail check {checked.connector}",
        tests=str(len(found)),
        failures=str(sum(bool(each) for each in found.values())),
        errors="0",
        time=f"{checked.seconds:.3f}",
    )
    for profile, failed in found.items():
        case = ET.SubElement(suite, "testcase", classname=checked.connector, name=profile)
        if failed:
            text = "\n\n".join(f"{each.failure.id}\n{each.failure.text}\n{_again(each)}" for each in failed)
            ET.SubElement(case, "failure", message="; ".join(each.failure.id for each in failed)).text = text
        ET.SubElement(
            case, "system-out"
        ).text = f"{checked.trials[profile]} trials, {checked.steps[profile]} steps. {PROFILES[profile].__doc__}"
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
        name = slug(each.failure.what)
        trace, test = folder / f"{name}.jsonl", folder / f"test_{name.replace('-', '_')}.py"
        trace.write_text("".join(otlp_json.spans_to_json_lines(each.played.spans)), encoding="utf-8")
        test.write_text(as_pytest(each.scenario, connector=each.subject, failure=each.failure), encoding="utf-8")
        files[each.failure.id] = (trace.name, test.name)
        written += [trace, test]
    for name, text in ((MARKDOWN, as_markdown(checked, files)), (JUNIT, as_junit(checked))):
        (folder / name).write_text(text, encoding="utf-8")
        written.append(folder / name)
    return written


def _summary(checked: Checked) -> str:
    rate = checked.steps.total() / checked.seconds if checked.seconds else 0
    return (
        f"{checked.connector}: {some(checked.trials.total(), 'trial')}, {some(checked.steps.total(), 'scheduling step')},"
        f" {some(checked.lookups, 'lookup')} of which {count(checked.hits)} hit, in {checked.seconds:.0f} s"
        f" ({count(rate)} steps/s); seeds from {checked.seed}."
    )


def _size(found: Found) -> str:
    return (
        f"With {some(len(found.scenario.arrivals), 'request')} in {some(found.played.steps, 'step')};"
        f" found first with {count(len(found.original.arrivals))}, profile {found.profile}, seed {found.seed}."
    )


def _again(found: Found) -> str:
    """The command that shows a failure again."""
    config = "" if not found.subject.extra else f" --config '{json.dumps(dict(found.subject.extra), sort_keys=True)}'"
    return f"kvtrail check '{found.subject.name}' --profile {found.profile} --seed {found.seed} --trials 1{config}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
