"""The reports of a session: for the terminal, and as JSON."""

from __future__ import annotations

import json
import textwrap
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvtrail.connector.known.probe import NO_PROBE
from kvtrail.connector.simulate.check.coverage import POINTS
from kvtrail.connector.simulate.check.profiles import PAIR_PROFILES
from kvtrail.connector.simulate.check.session import ASKED_FOR, NO_BYTES_TRACE, Checked, Found
from kvtrail.connector.simulate.regression import as_pytest, slug
from kvtrail.tracer.ingest import otlp_json
from kvtrail.tracer.model.words import count, some

NAME = "report.json"


def as_text(checked: Checked) -> str:
    """For a terminal."""
    parts = [_summary(checked), *_limits(checked)]
    if not checked.found:
        if not checked.inconclusive:
            return "\n".join([*parts, "Nothing found."])
        reasons = (f"- {reason}" for reason in checked.inconclusive)
        return "\n".join([*parts, "Nothing found, but this is inconclusive:", *reasons])
    parts.append(f"{some(len(checked.found), 'failure')} found:")
    for each in checked.found:
        more = checked.repeated[each.failure.id]
        parts.append(
            f"\n{each.failure.id}\n  {_size(each)}{f' Seen {more + 1} times.' if more else ''}\n  {each.failure.text}\n"
            f"  again: {again(each, checked)}"
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
        "failures": [as_failure(each, checked) for each in checked.found],
    }


def as_failure(found: Found, checked: Checked) -> dict[str, Any]:
    """A failure of a session as JSON-ready data. `trace` and `test` name the files that `write_files` writes."""
    failure = found.failure
    trace, test = names_of(found)
    return {
        "id": failure.id,
        "text": failure.text,
        "details": failure.details,
        "flaky": found.small.is_flaky,
        "found_after": found.after,
        "times": checked.repeated[failure.id] + 1,
        "profile": found.profile,
        "seed": found.seed,
        "config": dict(found.tested.extra),
        "again": again(found, checked),
        "scenario": found.small.scenario.as_dict(),
        "trace": trace,
        "test": test,
    }


def as_json(report: Mapping[str, Any]) -> str:
    return json.dumps(report, indent=2, ensure_ascii=False) + "\n"


def write(checked: Checked, folder: Path) -> list[Path]:
    """Write the session as JSON, and the trace and the test of each failure; returns the files.

    Raises:
        OSError: the folder cannot be written to.
    """
    return write_files({NAME: as_json(as_dict(checked))}, checked, folder)


def write_files(texts: Mapping[str, str], checked: Checked, folder: Path) -> list[Path]:
    """Write these texts, by the names of their files, and the trace and the test of each failure; returns the files.

    Raises:
        OSError: the folder cannot be written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = dict(texts)
    if checked.no_bytes is not None:
        texts[NO_BYTES_TRACE] = "".join(otlp_json.spans_to_json_lines(checked.no_bytes.spans))
    for found in checked.found:
        small = found.small
        trace, test = names_of(found)
        texts[trace] = "".join(otlp_json.spans_to_json_lines(small.played.spans))
        texts[test] = as_pytest(small.scenario, connector=found.tested, failure=small.failure)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


def test_beside(trace: Path) -> Path | None:
    """The test of the failure whose trace a session wrote to this file; None if no report beside it names the trace."""
    try:
        failures = json.loads((trace.parent / NAME).read_text(encoding="utf-8"))["failures"]
        name = next(each["test"] for each in failures if each["trace"] == trace.name)
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return None
    test = trace.parent / Path(name).name
    return test if test.is_file() else None


def names_of(found: Found) -> tuple[str, str]:
    """The names of the files with a failure's trace and its test. pytest needs a unique name for each test, so its digits
    are derived from the connector and the scenario."""
    name, shown = slug(found.failure.what), json.dumps([found.tested.name, found.small.scenario.as_dict()])
    return f"{name}.jsonl", f"test_{name.replace('-', '_')}_{zlib.crc32(shown.encode()):08x}.py"


def _summary(checked: Checked) -> str:
    rate = checked.steps.total() / checked.seconds if checked.seconds else 0
    shrinking = ", shrinking included" if checked.found else ""
    return (
        f"{checked.connector}: {some(checked.trials.total(), 'run')}, {some(checked.steps.total(), 'scheduling step')},"
        f" {some(checked.lookups, 'lookup')} with {some(checked.hits, 'hit')}, in {checked.seconds:.0f} s{shrinking}"
        f" ({count(rate)} steps/s); seeds from {checked.seed}."
    )


def _limits(checked: Checked) -> list[str]:
    """What the session did not check, in sentences."""
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


def _size(found: Found) -> str:
    small = found.small
    again = f" FLAKY: run again, it failed in {small.seen} of {small.runs} runs." if small.is_flaky else ""
    return (
        f"With {some(len(small.scenario.everybody), 'request')} in {some(small.played.steps, 'step')};"
        f" found first after {some(found.after, 'step')}, with {count(len(found.original.everybody))}, profile"
        f" {found.profile}, seed {found.seed}.{again}"
    )


def again(found: Found, checked: Checked) -> str:
    """The command that shows a failure again."""
    fakes = " --fake-workers" if checked.fake_workers == ASKED_FOR else ""
    config = "" if not found.tested.extra else f" --config '{json.dumps(dict(found.tested.extra), sort_keys=True)}'"
    return f"kvtrail check '{found.tested.name}' --profile {found.profile} --seed {found.seed} --runs 1{config}{fakes}"
