"""The first page: problems, in sentences that are links; and the totals of the range."""

from __future__ import annotations

from collections.abc import Mapping

from kvtrail.dashboard import palette
from kvtrail.dashboard.client import Row
from kvtrail.dashboard.content import findings, savings, text
from kvtrail.dashboard.content.time_range import TimeRange
from kvtrail.tracer.model.words import count, some

TIMED = ("overview", "requests", "findings", "savings")
"""The pages to which a sentence's link carries the time range."""
ICONS = {"lost": "error", "warning": "warning", "calm": "check_circle"}


def statements(status: Row, shown: TimeRange) -> list[Row]:
    """The tracer's sentences, worst first: each with its `level`, `text`, and the `page` and `query` that it links to. An
    unknown level (of a newer tracer) counts as a warning."""
    return [
        {
            **each,
            "level": each["level"] if each["level"] in ICONS else "warning",
            "query": {
                **(shown.address if each["page"] in TIMED else {}),
                **{name: str(value) for name, value in (each.get("query") or {}).items()},
            },
        }
        for each in status["statements"]
    ]


def cards(status: Row, saved: Row) -> list[list[str]]:
    """The nonzero numbers of the range: name, value, note, and the glossary's term. `saved` is the answer of
    `/api/efficiency`."""
    sums, outcomes, rules = saved["worth"], status["outcomes"], status["rules"]
    waited_s = sums["waited_s"] + sums["postponed_s"]
    tokens, spared = f"of {text.short(sums['asked'])} tokens", f"{some(sums['spared'], 'token')} spared"
    known = findings.known(rules)
    of_rules = f"{count(known)} known" if known else f"of {some(len(rules), 'rule')}"
    began, found = sum(outcomes.values()), sum(rule["findings"] for rule in rules)
    shown = [
        (began, "Requests", count(began), _outcomes(outcomes), "requests"),
        (sums["asked"], "Hit rate", text.percent(sums["hit_share"]), tokens, "hit rate"),
        (sums["spared"], "Prefill saved", text.percent(savings.saved_share(sums)), spared, "prefill saved"),
        (waited_s, "Waited for KV", text.seconds(waited_s), savings.waits(sums), "waited for KV"),
        (sums["preemptions"], "Preemptions", count(sums["preemptions"]), "", "preemption"),
        (found, "Findings", count(found), of_rules, "finding"),
    ]
    return [card for number, *card in shown if number]


def _outcomes(outcomes: Mapping[str, int]) -> str:
    """The numbers of requests with abnormal outcomes, and of open requests; empty if there are none."""
    parts = [
        f"{count(outcomes[name])} {'open' if name == 'running' else palette.label(name)}"
        for name in palette.OUTCOME
        if name != "finished" and outcomes.get(name)
    ]
    return ", ".join(parts)


def engine_settings(url: str) -> str:
    """The shell command that starts a traced engine and sends its spans here; only the model is a placeholder."""
    return " \\\n".join(
        (
            "KVTRAIL_TRACE=1",
            "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
            f"OTEL_EXPORTER_OTLP_ENDPOINT={url}",
            """vllm serve MODEL --kv-transfer-config '{"kv_connector": "OffloadConnector", "kv_role": "kv_both"}'""",
        )
    )
