"""The documentation page of spans and attributes: the vocabulary in print."""

from __future__ import annotations

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.events import CLASSES, FIELDS, STEP_FIELDS
from kvtrail.tracer.events.parts import PART

_STEP = (
    "Later steps of requests, as far as they say something new: a row is a `kv.schedule` of a request that gets blocks, runs"
    " more than one token or drafts, has just begun to decode, was left out of a step, or had a failed load. All the"
    " other running requests have decoded one token. Each row has its own number among the recorder's events, the first"
    " one that of the span, and the tracer takes the span apart: in its store, its api and its answers each row is a"
    " `kv.schedule` again. The span is a child of `kv.engine`, and not in the requests' traces."
)

_ENGINE = (
    "Root of what a recorder says in a minute and that concerns no request: steps of several requests, evictions,"
    " what a store holds, heartbeats. It lasts the whole minute, comes with the first of its children, and says nothing"
    " itself: it has no number, and no rule asks for it."
)

_FINDING = (
    "A finding, as a sidecar exports it (docs/elsewhere.md): a log record with the event name `kv.finding` and the scope"
    " `kvtrail.findings`. Its body says what happened, in sentences. Its trace is that of the request, and its span the last"
    " one of this trace that the finding rests on. Its severity is ERROR, or WARN if the guard repaired all of it. It also"
    " has what names the engine, the request and the connector on every span."
)


def as_markdown() -> str:
    """The documentation page of spans and attributes."""

    def rows(attributes: tuple[semconv.Attribute, ...]) -> str:
        return "\n".join(
            f"| `{a.key}` | {'array' if a.type is tuple else a.type.__name__} | {a.brief} |" for a in attributes
        )

    head = "| attribute | type | meaning |\n| --- | --- | --- |\n"
    parts = [
        "# Spans and attributes\n\nGenerated from `tracer/events/events.py` and `semconv.py` by"
        " `python -m kvtrail.tracer.events.vocabulary > docs/spans.md`;"
        " a test fails when the two differ.\n\nEvery kvtrail span has the instrumentation scope `kvtrail`. Counts are"
        " tokens, blocks or bytes; an attribute that could not be known is absent. A call that raised has status ERROR"
        " and the event `exception`, as OpenTelemetry's conventions have it.\n",
        f"## On every span\n\n{head}{rows(semconv.COMMON)}\n",
        f"## On the resource\n\n{head}{rows(semconv.RESOURCE)}\n",
        "## On the resource of a minimized trace\n\nA trace with these is no recording but a part of one, numbered again by"
        f" `kvtrail minimize`.\n\n{head}{rows(semconv.MINIMIZED)}\n",
        "## On the resource of a part that is about one request\n\nA trace with these was downloaded from the page of a"
        " request, and is no recording. Its numbers are closed up where other events were left out, and the ids of its"
        " recorders are its own. Where it says `kvtrail.recorder.sampled_only`, its spans are not all that its rules would"
        f" need.\n\n{head}{rows(PART)}\n",
    ]
    for kind, attributes in FIELDS.items():
        shown = (*attributes, *semconv.OF_ROOT) if kind in semconv.ROOTS else attributes
        table = f"\n\n{head}{rows(shown)}" if shown else ""
        parts.append(f"## `{kind}`\n\n{_brief(kind)}{table}\n")
        if kind is semconv.Kind.SCHEDULE:
            parts.append(f"## `{semconv.STEP_SPAN}`\n\n{_STEP}\n\n{head}{rows(STEP_FIELDS)}\n")
    parts.append(f"## `{semconv.ENGINE_SPAN}`\n\n{_ENGINE}\n\n{head}{rows((semconv.ENGINE_ID,))}\n")
    parts.append(f"## `{semconv.FINDING_EVENT}`\n\n{_FINDING}\n\n{head}{rows(semconv.FINDING_FIELDS)}\n")
    return "\n".join(parts)


def _brief(kind: semconv.Kind) -> str:
    """What an event of this kind says: its class's docstring, in one line."""
    return " ".join((CLASSES[kind].__doc__ or "").split())


if __name__ == "__main__":
    print(as_markdown(), end="")
