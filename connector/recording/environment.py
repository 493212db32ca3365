"""What OpenTelemetry's variables say to a recorder."""

from __future__ import annotations

import os
from typing import Any

from opentelemetry.sdk.resources import Resource


def positive(variable: str, default: int) -> int:
    """The number in a variable.

    Raises:
        ValueError: it holds no whole number above 0.
    """
    text = os.environ.get(variable, "").strip() or str(default)
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"kvtrail: {variable} is {text!r}; it must be a whole number above 0")
    return int(text)


def resource_of(attributes: dict[str, Any]) -> Resource:
    """The resource of an engine: what the SDK detects, and these attributes. vLLM is the service where none is named."""
    resource = Resource.create(attributes)  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES included
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
        return resource.merge(Resource({"service.name": "vllm"}))
    return resource
