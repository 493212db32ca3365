"""The first page: what is wrong, in sentences that are links; and the totals of the range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import findings, savings, text
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.tracer.model.words import count, some

TIMED = ("overview", "requests", "findings", "savings")
"""The pages to which a sentence's link carries the time range."""
LEAST_RATE = 0.1
"""A lower rate would be shown as 0.0."""
ICONS = {"lost": "error", "warning": "warning", "calm": "check_circle"}


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence on the first page: its `level` (`lost`, `warning` or `calm`), and the page and query that it links to."""

    level: str
    text: str
    page: str
    query: Mapping[str, str]


def statements(status: Row, shown: TimeRange) -> list[Statement]:
    """The tracer's sentences, worst first. An unknown level (of a newer tracer) counts as a warning."""
    return [
        Statement(
            level=each["level"] if each["level"] in ICONS else "warning",
            text=each["text"],
            page=each["page"],
            query={
                **(shown.address if each["page"] in TIMED else {}),
                **{name: str(value) for name, value in (each.get("query") or {}).items()},
            },
        )
        for each in status["statements"]
    ]


def cards(status: Row, saved: Row) -> list[tuple[str, str, str, str]]:
    """The few numbers of the range that are not zero: name, value, note, and the glossary's term. `saved` is the answer
    of `/api/efficiency`; rates are by the minutes of the status."""
    sums, outcomes, rules = saved["worth"], status["outcomes"], status["rules"]
    began = sum(outcomes.values())
    waited_s = sums["waited_s"] + sums["postponed_s"]
    found = sum(rule["findings"] for rule in rules)
    shown = [
        (began, ("Requests", count(began), _outcomes(outcomes) or _a_minute(began, status["minutes"]), "requests")),
        (
            sums["asked"],
            ("Hit rate", text.percent(sums["hit_share"]), f"of {text.short(sums['asked'])} tokens", "hit rate"),
        ),
        (sums["spared"], ("Prefill saved", text.percent(savings.saved_share(sums)), _saved(sums), "prefill saved")),
        (waited_s, ("Waited for KV", text.seconds(waited_s), savings.waits(sums), "waited for KV")),
        (
            sums["preemptions"],
            (
                "Preemptions",
                count(sums["preemptions"]),
                _a_minute(sums["preemptions"], status["minutes"]),
                "preemption",
            ),
        ),
        (found, ("Findings", count(found), _of_rules(rules), "finding")),
    ]
    return [each for number, each in shown if number]


def _outcomes(outcomes: Mapping[str, int]) -> str:
    """How they ended that did not end as they should, and how many are open; empty if none."""
    parts = [
        f"{count(outcomes[name])} {'open' if name == 'running' else palette.label(name)}"
        for name in palette.OUTCOME
        if name != "finished" and outcomes.get(name)
    ]
    return ", ".join(parts)


def _saved(sums: Row) -> str:
    """The time that was saved, or the tokens where it is not known."""
    seconds = sums["prefill_saved_s"]
    return f"{text.seconds(seconds)} of time" if seconds is not None else f"{some(sums['spared'], 'token')} spared"


def _of_rules(rules: Sequence[Row]) -> str:
    """Of how many rules the findings are, or how many are known: a sum that is all known needs nobody."""
    number = findings.known(rules)
    return f"{count(number)} known" if number else f"of {some(len(rules), 'rule')}"


def _a_minute(number: int, minutes: float) -> str:
    """A count as a rate."""
    a_minute = number / minutes
    return f"{text.rate(a_minute)} a minute" if a_minute >= LEAST_RATE else f"under {LEAST_RATE} a minute"


def engine_settings(url: str, *, wants_token: bool) -> str:
    """The shell command that starts a traced engine and sends its spans here; only the model is a placeholder."""
    settings = ["KVTRAIL_TRACE=1", "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", f"OTEL_EXPORTER_OTLP_ENDPOINT={url}"]
    if wants_token:
        settings.append("OTEL_EXPORTER_OTLP_HEADERS='authorization=Bearer%20TOKEN'")
    connector = '\'{"kv_connector": "OffloadConnector", "kv_role": "kv_both"}\''
    return " \\\n".join([*settings, f"vllm serve MODEL --kv-transfer-config {connector}"])
