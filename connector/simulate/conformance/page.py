"""The suite's report as one HTML file for a connector's maintainer: what was not exercised, the verdict, the requirements,
and for each failure its timeline, the arithmetic in words, the workload, the test to paste and the command to see it again.

It needs no network, and its Content-Security-Policy allows none.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from kvtrail.connector.simulate.conformance.circumstances import circumstances
from kvtrail.connector.simulate.conformance.drawing import drawn, legend
from kvtrail.connector.simulate.conformance.html import Child, element, page
from kvtrail.connector.simulate.conformance.timeline import timeline
from kvtrail.connector.simulate.scenario import Scenario
from kvtrail.tracer.history.history import load
from kvtrail.tracer.history.judging import findings_of
from kvtrail.tracer.ingest.trace_file import UnusableTrace
from kvtrail.tracer.model.words import count, some
from kvtrail.tracer.rules import Rule, all_rules

NAME = "index.html"
NOT_EXERCISED = "not exercised"
Report = Mapping[str, Any]
"""The suite's report, as in its JSON document."""
_INLINE = re.compile(r"`([^`\n]+)`|(https?://[^\s<>\"'()\[\]]*[^\s<>\"'()\[\].,;:])")
_RULE = "rule: "


def as_html(report: Report, folder: Path) -> str:
    """The page of a report with its traces and tests in a folder."""
    style, script = (files(__package__).joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    name = report["connector"]["name"]
    policy = f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("title", f"{name}: conformance {report['verdict']}"),
        _raw("style", style),
    )
    body = element(
        "body",
        element("h1", f"Conformance of {name}"),
        element("p", *inline(_facts(report)), class_="facts"),
        _not_exercised(report),
        _verdict(report),
        element("h2", "Requirements"),
        _requirements(report),
        *(_failure(each, number, folder) for number, each in enumerate(report["failures"], 1)),
        _raw("script", script),
    )
    return page(element("html", head, body, lang="en"))


def write(report: Report, folder: Path) -> Path:
    """Write the page beside the report; returns the file.

    Raises:
        OSError: the folder cannot be written to.
    """
    path = folder / NAME
    path.write_text(as_html(report, folder), encoding="utf-8")
    return path


def inline(text: str) -> Iterator[Child]:
    """A text with code in backticks, and with links."""
    end = 0
    for found in _INLINE.finditer(text):
        yield text[end : found.start()]
        code, address = found.groups()
        yield element("code", code) if code else element("a", address, href=address, rel="noreferrer")
        end = found.end()
    yield text[end:]


def _raw(tag: str, text: str) -> ET.Element:
    """A style sheet or a script of ours, which is not escaped."""
    made = ET.Element(tag)
    made.text = text
    return made


def _digest(text: str) -> str:
    """A source expression of Content-Security-Policy that allows exactly this text."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _facts(report: Report) -> str:
    connector, suite, settings = report["connector"], report["suite"], report["settings"]
    package = f" of {connector['package']} {connector['version'] or ''}".rstrip() if connector["package"] else ""
    claimed, seen = (", ".join(report["features"][name]) or "nothing" for name in ("claimed", "detected"))
    own = (
        "each value in its turn"
        if settings["config"] is None
        else f"`{json.dumps(settings['config'], sort_keys=True)}`"
    )
    return (
        f"`{connector['module']}:{connector['class']}`{package} · vLLM {report['vllm']} · Python {report['python']} · suite"
        f" {suite['version']} (kvtrail {suite['kvtrail']}), level {settings['level']} · settings {own} · seed"
        f" {report['seed']} · {some(report['steps'], 'scheduling step')}, {some(report['lookups'], 'lookup')},"
        f" {some(report['hits'], 'hit')}, {some(report['workers']['blocks_compared'], 'block')} compared bit by bit after"
        f" {some(report['workers']['loads_read'], 'load')} · {report['seconds']:.0f} s · {report['at']} · it claims:"
        f" {claimed}; seen: {seen}"
    )


def _not_exercised(report: Report) -> ET.Element:
    """What the verdict says nothing about, and why."""
    reasons: dict[str, list[str]] = {}
    for each in report["requirements"]:
        if each["result"] == NOT_EXERCISED:
            reasons.setdefault(each["why"], []).append(each["id"])
    missed, asked = sum(map(len, reasons.values())), len(report["requirements"])
    what = f"{some(asked, 'requirement')} of level {report['settings']['level']}"
    if not missed:
        said = f"Nothing: {what} {'was' if asked == 1 else 'were all'} put to the test."
    else:
        said = f"{count(missed)} of {what} {'was' if missed == 1 else 'were'} not put to the test."
    parts = [element("h2", "What was not exercised"), element("p", said), _by_reason(reasons)]
    workers = report["workers"]
    if not workers["own"]:
        parts.append(element("p", *inline(f"The connector's own workers did not run: {workers['why_fake']}.")))
    if report["unprobed"] is not None:
        hidden = f"Its plans and its store were hidden, for want of a probe: {report['unprobed']}."
        parts.append(element("p", *inline(hidden)))
    if report["not_driven"]:
        profiles: dict[str, list[str]] = {}
        for profile, why in report["not_driven"].items():
            profiles.setdefault(why, []).append(profile)
        parts += [element("p", "Workloads that were not driven:"), _by_reason(profiles)]
    return element("section", *parts, class_="box")


def _by_reason(reasons: Mapping[str, Sequence[str]]) -> ET.Element | None:
    if not reasons:
        return None
    items = (
        element("li", *_comma_separated(element("code", name) for name in names), ": ", *inline(why))
        for why, names in reasons.items()
    )
    return element("ul", *items)


def _comma_separated(elements: Iterable[ET.Element]) -> Iterator[Child]:
    for number, each in enumerate(elements):
        if number:
            yield ", "
        yield each


def _verdict(report: Report) -> ET.Element:
    results = [each["result"] for each in report["requirements"]]
    passed, failed = results.count("passed"), results.count("failed")
    steps = some(report["steps"], "scheduling step")
    match report["verdict"]:
        case "passed":
            said = f"Passed: all {some(passed, 'requirement')} that were exercised held in {steps}."
        case "failed":
            found = some(len(report["failures"]), "failure")
            said = f"Failed: {found}, by which {some(failed, 'requirement')} did not hold; {count(passed)} held."
        case _:
            said = f"Inconclusive: nothing failed in {steps}, but that proves nothing."
    links = [
        element("li", element("a", each["id"], href=f"#failure-{number}"))
        for number, each in enumerate(report["failures"], 1)
    ]
    reasons = [element("li", *inline(reason)) for reason in report["inconclusive"]]
    listed = element("ul", *links, *reasons) if links or reasons else None
    parts = element("h2", "Verdict"), element("p", said, class_="verdict"), listed
    return element("section", *parts, class_=f"box {_slug(report['verdict'])}")


def _requirements(report: Report) -> ET.Element:
    numbers = {each["id"]: number for number, each in enumerate(report["failures"], 1)}
    groups: dict[str, list[Report]] = {}
    for each in report["requirements"]:
        groups.setdefault(each["feature"] or each["level"], []).append(each)
    body = element("tbody")
    for name, of_group in groups.items():
        level = of_group[0]["level"]
        title = name if name == level else f"{level}: {name}"
        body.append(element("tr", element("th", title, colspan="3", scope="rowgroup"), class_="group"))
        body.extend([_requirement(each, numbers) for each in of_group])
    heads = [
        element("th", "result"),
        element("th", "requirement"),
        element("th", "reached", class_="number", title="how often it was at risk where something could judge it"),
    ]
    return element("table", element("thead", element("tr", *heads)), body, class_="requirements")


def _requirement(of: Report, numbers: Mapping[str, int]) -> ET.Element:
    failures = [element("a", id_, href=f"#failure-{numbers[id_]}") if id_ in numbers else id_ for id_ in of["failures"]]
    said = element(
        "td",
        *inline(of["sentence"]),
        element("div", of["id"], class_="id"),
        element("div", *inline(of["source"]), class_="source"),
        element("div", *inline(f"Not exercised: {of['why']}"), class_="why") if of["why"] else None,
        *(element("div", each) for each in failures),
    )
    return element(
        "tr",
        element("td", element("span", of["result"], class_=f"result {_slug(of['result'])}")),
        said,
        element("td", count(of["reached"]), class_="number"),
    )


def _failure(of: Report, number: int, folder: Path) -> ET.Element:
    scenario, rule = of["scenario"], _rule(of)
    after = f" It was found after {some(of['found_after'], 'scheduling step')}." if "found_after" in of else ""
    times = f" It was seen {count(of['times'])} times." if of["times"] > 1 else ""
    first = " The first is the likeliest cause." if len(of["requirements"]) > 1 else ""
    flaky = (
        " It does not appear each time that its workload is run, so the workload was not shrunk." if of["flaky"] else ""
    )
    return element(
        "section",
        element("h2", f"{number}. {of['id'] if rule is None else rule.title}"),
        None if rule is None else element("p", of["id"], class_="id"),
        element("p", *inline(of["text"]), class_="says"),
        None if rule is None else element("p", *inline(f"Usually: {rule.hint}")),
        element(
            "p",
            "Breaks ",
            *_comma_separated(element("code", each) for each in of["requirements"]),
            f".{first}{after}{times}{flaky}",
        ),
        element("h3", "What happened"),
        *_history(of, folder),
        element("h3", "See it again"),
        _code(of["again"], class_="code line"),
        element("h3", "A test that fails until it is fixed"),
        element("p", "Save it as ", element("code", of["test"]), "; it needs kvtrail, vLLM and pytest."),
        _code(_read(folder / of["test"])),
        element("h3", "The workload"),
        _arrivals(scenario),
        _circumstances(scenario),
        _folded("The whole scenario as JSON", _code(json.dumps(scenario, indent=1))),
        _folded("Where it died, and what happened last", _code(of["details"])) if of["details"] else None,
        class_="failure",
        id=f"failure-{number}",
    )


def _rule(of: Report) -> Rule | None:
    """The rule that a failure is of; None if something else found it."""
    return next((rule for rule in all_rules() if f"{_RULE}{rule.id}" == of["id"]), None)


def _history(of: Report, folder: Path) -> Iterator[ET.Element]:
    """The timeline of the run, and its events in words."""
    try:
        events = load([folder / of["trace"]]).events
    except (UnusableTrace, OSError) as error:
        yield element("p", f"The trace cannot be read: {error}")
        return
    rule = _rule(of)
    findings = [each for each in findings_of(events).values() if rule is not None and each.rule == rule.id]
    proofs = {witness.span_id: witness.label for finding in findings[:1] for witness in finding.witness}
    picture = timeline(events, named=f"{of['text']} {of['details']}", proofs=proofs)
    yield legend(picture)
    yield drawn(picture)
    order = f"{some(picture.events, 'event')}, side by side in the order in which they happened. {picture.left_out}"
    yield element("p", order.rstrip(), " The whole trace: ", element("code", of["trace"]), ".", class_="why")
    marks = sorted(
        ((mark.number, lane, mark) for lane in picture.lanes for mark in lane.marks), key=lambda each: each[0]
    )
    rows = [
        element(
            "tr",
            element("td", str(number), class_="number"),
            element("td", lane.name),
            element("td", f"{mark.row} ({mark.proof})" if mark.proof else mark.row),
            element("td", f"{mark.text}; raised {mark.raised}" if mark.raised else mark.text),
        )
        for number, lane, mark in marks
    ]
    heads = [element("th", "event", class_="number"), *(element("th", text) for text in ("request", "call", "says"))]
    yield _folded(
        "The events in words", element("table", element("thead", element("tr", *heads)), element("tbody", *rows))
    )


def _arrivals(scenario: Report) -> ET.Element:
    """The requests of a workload: of two engines first those that one of them hands over, then what each is asked besides."""
    arrivals = (
        scenario["arrivals"]
        if "arrivals" in scenario
        else [each for name in ("requests", "prefills", "decodes") for each in scenario[name]]
    )
    rows = [
        element(
            "tr",
            element("td", str(each["id"])),
            element("td", str(each.get("at_step", each.get("at_tick", 0))), class_="number"),
            element("td", " + ".join(f"{length} of {name}" for name, length in each["prompt"])),
            element("td", str(each.get("max_tokens", "")), class_="number"),
        )
        for each in arrivals
    ]
    heads = [
        element("th", "request"),
        element("th", "arrives before step", class_="number"),
        element("th", "prompt, in tokens of each text"),
        element("th", "tokens of output", class_="number"),
    ]
    table = element("table", element("thead", element("tr", *heads)), element("tbody", *rows))
    return element("div", table, class_="scroll workload", tabindex="0")


def _circumstances(scenario: Report) -> ET.Element | None:
    """What a workload of one engine has besides its requests."""
    if "arrivals" not in scenario:
        return None
    return element("ul", *(element("li", *inline(each)) for each in circumstances(Scenario.from_dict(scenario))))


def _code(text: str, *, class_: str = "code") -> ET.Element:
    """A text to copy; without scripts the button stays hidden."""
    return element(
        "div", element("pre", element("code", text)), element("button", "Copy", type="button", hidden=""), class_=class_
    )


def _folded(title: str, content: ET.Element) -> ET.Element:
    return element("details", element("summary", title), content)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        return f"# It cannot be read: {error}"


def _slug(word: str) -> str:
    return word.replace(" ", "-")
