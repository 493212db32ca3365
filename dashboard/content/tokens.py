"""Where the tokens of a request came from, as a sum: prompt = vLLM's cache + loaded + computed."""

from __future__ import annotations

from dataclasses import dataclass

from kvtrail.dashboard.client import Row
from kvtrail.tracer.events.semconv import Kind
from kvtrail.tracer.model.words import count


@dataclass(frozen=True, slots=True)
class Admission:
    """The sources of the tokens of one admission: `asked` = `cached` + `loaded` + `computed`.

    Attributes:
        epoch: the number of preemptions before. A preempted request asks again, for its output so far as well.
        step: its first step, as the page counts steps.
    """

    epoch: int
    step: int
    asked: int
    cached: int
    loaded: int

    @property
    def computed(self) -> int:
        """The tokens from neither."""
        return self.asked - self.cached - self.loaded

    @property
    def parts(self) -> tuple[int, int, int]:
        """The tokens from vLLM's cache, the loaded, and the computed ones."""
        return self.cached, self.loaded, self.computed


def admissions(timeline: Row) -> list[Admission]:
    """The admissions of a request, in order; only those with a recorded lookup and first step."""
    found: list[Admission] = []
    lookup: Row | None = None
    for number, step in enumerate(timeline["steps"], 1):
        if step["foreign"]:
            continue
        numbers = step["numbers"]
        if step["name"] == Kind.LOOKUP:
            lookup = step
        elif step["name"] == Kind.SCHEDULE and lookup is not None and lookup["epoch"] == step["epoch"]:
            asked = lookup["numbers"]["total"]
            # A load that failed is computed from where it failed, which may lie within vLLM's own cache.
            begins = min(numbers["computed"], asked)
            cached = min(lookup["numbers"]["computed"], begins)
            found.append(Admission(step["epoch"], number, asked, cached, begins - cached))
            lookup = None
    return found


def sum_line(admission: Admission) -> str:
    """The sum as text."""
    whole = "prompt" if not admission.epoch else "prompt and output so far"
    return (
        f"{count(admission.asked)} tokens of {whole} = {count(admission.cached)} from vLLM's cache +"
        f" {count(admission.loaded)} loaded + {count(admission.computed)} computed"
    )


def parts(admission: Admission) -> list[tuple[str, str, str]]:
    """The parts of the sum: the name, the tokens, and the glossary's term."""
    names = {"vLLM's cache": "from vLLM's cache", "Loaded": "loaded of the sum", "Computed": "computed of the sum"}
    return [(name, count(number), term) for (name, term), number in zip(names.items(), admission.parts, strict=True)]
