"""An audit as text: engines that died, findings grouped by rule and request, and the amount of data."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from click import style

from kvtrail.tracer.history.audit import Audit
from kvtrail.tracer.ledger.handoff_sums import Flow, Outcome
from kvtrail.tracer.liveness.deaths import Death
from kvtrail.tracer.model import words
from kvtrail.tracer.model.findings import Finding, Severity, Verdict, Witness, clock, day
from kvtrail.tracer.model.outcomes import Impact
from kvtrail.tracer.reports.terminal import plain, wrapped

COLORS = {
    Severity.CRASH: "red",
    Severity.WRONG_OUTPUT: "red",
    Severity.BROKEN_CONTRACT: "yellow",
    Severity.HANG: "yellow",
    Severity.LEAK: "yellow",
    Severity.WASTED_WORK: "cyan",
    Severity.WRONG_METRICS: "cyan",
}
_ENDS = {
    Outcome.LOADED: "loaded",
    Outcome.FAILED: "failed to load",
    Outcome.NOT_LOADED: "not loaded",
    Outcome.DECLINED: "declined",
    Outcome.EXPIRED: "kept until the lease ran out",
}
"""Texts for the ends of hand-offs; the normal end, a read, is omitted."""
MAX_REQUESTS = 10
"""Maximum number of requests shown under a rule."""
T = TypeVar("T")


def as_text(result: Audit, *, columns: int | None = None, everything: bool = False) -> str:
    """An audit as text: engines that died, each rule with findings, its requests, and the amount of data.

    Args:
        columns: width to wrap lines to; None leaves them whole.
        everything: show all requests of a rule, not just the first `MAX_REQUESTS`.
    """
    several_engines = len({finding.engine for finding in result.findings}) > 1
    paragraphs = [_death(death, result, columns) for death in result.deaths]
    # Findings and groups are sorted by severity and then by time: the first finding is often the cause.
    for found in _grouped(result.findings, lambda f: f.rule):
        requests = _grouped(found, lambda f: (f.engine, f.request))
        paragraphs.append(_heading(found[0], len(requests), columns))
        shown = requests if everything else requests[:MAX_REQUESTS]
        paragraphs += [
            _finding(
                f,
                columns,
                engine=result.engine_name(f.engine) if several_engines or not f.request else "",
                did=result.did.get(f.id),
                outcome=result.request_outcomes.get((f.engine, f.request), ""),
            )
            for request in shown
            for f in request
        ]
        if more := len(requests) - len(shown):
            rest = words.some(more, f"more {_where(found[0])}")
            paragraphs.append(style(f"  and {rest}; --all shows all of them", dim=True))
    paragraphs.append(_summary(result, columns))
    return "\n\n".join(paragraphs)


def _death(death: Death, result: Audit, columns: int | None) -> str:
    """How an engine died, the requests it lost, and the finding that may have caused it."""
    at = f"{day(death.at_ns)} {clock(death.at_ns)} UTC"
    head = plain(f"Engine {result.engine_name(death.engine)} {words.ended(death.ended_by, at, whole=True)}")
    lines = [style(line, fg="red", bold=True) for line in wrapped(head, columns, rest="  ")]
    named = f": {words.first_of(death.lost)}" if death.lost else ""
    lost = plain(f"Lost: {words.some(len(death.lost), 'request')}{named}")
    lines += wrapped(lost, columns, first="  ", rest="    ")
    if (cause := death.cause) is not None:
        request = f" of request {cause.request}" if cause.request else ""
        lines += wrapped(plain(f"Why: {cause.title} ({cause.rule}{request})"), columns, first="  ", rest="    ")
    return "\n".join(lines)


def finding_text(finding: Finding, *, columns: int | None = None) -> str:
    """One finding: its rule, request, explanation, witnesses, and usual cause."""
    hint = wrapped(f"Usually: {finding.hint}", columns, first="    ")
    engine = "" if finding.request else finding.engine
    return "\n".join([*_title(finding, columns), *_finding(finding, columns, engine=engine).split("\n"), *hint])


def _heading(finding: Finding, requests: int, columns: int | None) -> str:
    """The common text of all findings of a rule."""
    lines = _title(finding, columns)
    lines.append(f"  In {words.some(requests, _where(finding))}.")
    lines += wrapped(f"Usually: {finding.hint}", columns, first="  ")
    return "\n".join(lines)


def _title(finding: Finding, columns: int | None) -> list[str]:
    mark = f"[could: {finding.severity}]"
    lines = wrapped(f"{finding.rule} {mark} {finding.title}", columns, rest="  ")
    lines[0] = lines[0].replace(mark, style(mark, fg=COLORS[finding.severity], bold=True), 1)
    lines[0] = lines[0].replace(finding.rule, style(finding.rule, bold=True), 1)
    return lines


def _finding(
    finding: Finding, columns: int | None, *, engine: str, did: Impact | None = None, outcome: str = ""
) -> str:
    """One finding: where and how often it occurred, its impact, the explanation, and its witnesses. `engine` is named unless
    it is empty; `outcome` is that of the request, in words."""
    facts = [f"request {finding.request}", words.run(finding.epoch)] if finding.request else []
    if finding.connector:  # with a MultiConnector, the child may be unknown
        facts.append(finding.connector)
    if engine:
        facts.append(f"engine {engine}")
    often = words.ending(finding.count)
    if finding.healed and did is not Impact.HEALED:
        often += f", {words.healed(finding.healed, count=finding.count)}"
    how = f" ({outcome})" if outcome and did is not Impact.DIED else ""  # the death itself is above
    effect = f"did: {did}{how}" if did else ""
    head = plain("; ".join(each for each in (", ".join(fact for fact in facts if fact), often, effect) if each))
    lines = [style(line, bold=True) for line in wrapped(head, columns, first="  ", rest="    ")]
    lines += wrapped(plain(words.without_epochs(" ".join(finding.explanation.split()))), columns, first="    ")
    return "\n".join([*lines, *_moments(finding, columns)])


def _where(finding: Finding) -> str:
    """The subject of a finding: a request, or its engine if it concerns no request."""
    return "request" if finding.request else "engine"


def _moments(finding: Finding, columns: int | None) -> list[str]:
    """A line for each event of the witness, aligned in columns, under its day."""
    labels = max((len(w.label) for w in finding.witness), default=0)
    kinds = max((len(words.kind(w.kind)) for w in finding.witness), default=0)
    lines = []
    today = ""
    for witness in finding.witness:
        if day(witness.at_ns) != today:
            today = day(witness.at_ns)
            lines.append(style(f"    {today} (UTC)", dim=True))
        at = clock(witness.at_ns)
        prefix = f"    {at}  {witness.label:<{labels}}  {words.kind(witness.kind):<{kinds}}  "
        hang = " " * (len(prefix) if columns is None else min(len(prefix), columns // 2))
        first, *rest = wrapped(plain(_described(witness, finding.epoch)), columns, first=prefix, rest=hang)
        lines += [first.replace(at, style(at, dim=True), 1), *rest]
    return lines


def _described(witness: Witness, epoch: int) -> str:
    """The event in words, with its epoch if that differs from the finding's."""
    parts = [words.described(witness.kind, witness.numbers)]
    if witness.numbers.get("blocks_ids"):
        parts.append(f"blocks {words.blocks_named(witness.numbers)}")
    if witness.epoch != epoch:
        parts.append(words.run(witness.epoch))
    return "; ".join(part for part in parts if part)


def _summary(result: Audit, columns: int | None) -> str:
    of = result.verdicts
    texts = [
        f"{words.some(sum(of.values()), 'request')}: {of[Verdict.DRIFT]} with drift, {of[Verdict.OK]} ok,"
        f" {of[Verdict.UNKNOWN]} unknown;"
        f" {words.some(result.events, 'event')}, {words.some(result.foreign, 'foreign span')},"
        f" {words.some(result.missing, 'event')} missing.",
        *result.logs,
        *(_handed_over(result, *pair, flow) for pair, flow in result.handoffs),
    ]
    for what, unknown in (("spans", result.unknown_spans), ("attributes", result.unknown_attributes)):
        if unknown:
            named = ", ".join(f"{name} ({words.count(number)})" for name, number in sorted(unknown.items()))
            texts.append(f"A newer kvtrail wrote {what} that this one does not know and skips: {named}.")
    if result.unreadable:
        file, number, reason = result.unreadable[0]
        texts.append(f"{len(result.unreadable)} lines or spans could not be read; the first: {file}:{number}: {reason}")
    texts += [f"Never decided, because {why}: {', '.join(rules)}." for why, rules in result.unjudged.items()]
    lines = [line for text in texts for line in wrapped(plain(text), columns)]
    if not result.findings and (reasons := result.inconclusive):
        lines.append("Nothing found, but this is inconclusive:")
        for reason in reasons:
            lines += wrapped(plain(reason), columns, first="- ", rest="  ")
    return "\n".join(lines)


def _handed_over(result: Audit, giver: str, taker: str, flow: Flow) -> str:
    """A sentence about the hand-offs from one engine to another."""
    ends = ", ".join(
        f"{words.count(flow.outcomes[each])} {text}" for each, text in _ENDS.items() if flow.outcomes[each]
    )
    to = f"to {result.engine_name(taker)}" if taker else "that no request here takes"
    return f"{result.engine_name(giver)} gave {words.some(flow.handoffs, 'hand-off')} {to}{': ' if ends else ''}{ends}."


def _grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """The items grouped by key, groups and items in order of first occurrence."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())
