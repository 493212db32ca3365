"""The documentation page of spans and attributes, made of the vocabulary's tables."""

from __future__ import annotations

from kvtrail.tracer.events import semconv
from kvtrail.tracer.events.briefs import BRIEFS, ENGINE_BRIEF, FINDING_BRIEF, STEP_BRIEF
from kvtrail.tracer.events.parts import PART


def as_markdown() -> str:
    """The documentation page of spans and attributes."""

    def rows(attributes: tuple[semconv.Attribute, ...]) -> str:
        return "\n".join(
            f"| `{a.key}` | {'array' if a.type is tuple else a.type.__name__} | {a.brief} |" for a in attributes
        )

    head = "| attribute | type | meaning |\n| --- | --- | --- |\n"
    parts = [
        "# Spans and attributes\n\nGenerated from `tracer/events/semconv.py` by"
        " `python -m kvtrail.tracer.events.vocabulary > docs/spans.md`;"
        " a test fails when the two differ.\n\nEvery kvtrail span has the instrumentation scope `kvtrail`. Counts are"
        " tokens, blocks or bytes; an attribute that could not be known is absent. A call that raised has status ERROR"
        " and the event `exception`, as OpenTelemetry's conventions have it.\n",
        f"## On every span\n\n{head}{rows(semconv.COMMON)}\n",
        f"## On the resource\n\n{head}{rows(semconv.RESOURCE)}\n",
        "## On the resource of a minimized trace\n\nA trace with these is no recording but a part of one, numbered anew by"
        f" `kvtrail minimize`.\n\n{head}{rows(semconv.MINIMIZED)}\n",
        "## On the resource of a part that is about one request\n\nA trace with these was downloaded from the page of a"
        " request, and is no recording. Its numbers are closed up where other events were left out, and the ids of its"
        " recorders are its own. Where it says `kvtrail.recorder.sampled_only`, its spans are not all that its rules would"
        f" need.\n\n{head}{rows(PART)}\n",
    ]
    for kind, attributes in semconv.FIELDS.items():
        shown = (*attributes, *semconv.OF_ROOT) if kind in semconv.ROOTS else attributes
        table = f"\n\n{head}{rows(shown)}" if shown else ""
        parts.append(f"## `{kind}`\n\n{BRIEFS[kind]}{table}\n")
        if kind is semconv.Kind.SCHEDULE:
            parts.append(f"## `{semconv.STEP_SPAN}`\n\n{STEP_BRIEF}\n\n{head}{rows(semconv.STEP_FIELDS)}\n")
    parts.append(f"## `{semconv.ENGINE_SPAN}`\n\n{ENGINE_BRIEF}\n\n{head}{rows((semconv.ENGINE_ID,))}\n")
    of_finding = rows((*semconv.FINDING_FIELDS, semconv.FINDING_WITNESS))
    parts.append(f"## `{semconv.FINDING_SPAN}`\n\n{FINDING_BRIEF}\n\n{head}{of_finding}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(as_markdown(), end="")
