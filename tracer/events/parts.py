"""The attributes of a part of a recording that is about one request, as the page of a request gives it away."""

from __future__ import annotations

from kvtrail.tracer.events.semconv import Attribute

PART_REQUEST = Attribute(
    "kvtrail.part.request",
    str,
    "The engine's id of the request that the part is about. Spans of other requests are in it as evidence only.",
)
PART_ENGINE = Attribute("kvtrail.part.engine", str, "The id of that request's engine.")
PART_RECORDED = Attribute(
    "kvtrail.part.recorded",
    str,
    "JSON: the `verdict` that the tracer recorded, the reason of an `unknown` one, how many events are `missing`, and the"
    " `findings`. Only where the spans of the part do not give the same by themselves.",
)
PART: tuple[Attribute, ...] = (PART_REQUEST, PART_ENGINE, PART_RECORDED)
"""Resource attributes of such a part: nobody may take it for a whole recording."""
