"""What requests, and the tokens that they computed again, are grouped by."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, get_args


class By(StrEnum):
    """The labels of a request, and of the tokens that its admissions computed again."""

    ENGINE = "engine"
    MODEL = "model"
    """That of the engine: no store groups by it."""
    CONNECTOR = "connector"
    TENANT = "tenant"
    PREFIX = "prefix"
    """Of requests, as `model.prefixes.prefix_of` has it; of wasted tokens, that at which the loss begins."""
    CAUSE = "cause"
    TIER = "tier"
    REQUEST = "request"


OfRequests = Literal[By.ENGINE, By.MODEL, By.CONNECTOR, By.TENANT, By.PREFIX]
"""What requests are grouped by; the others are labels of wasted tokens."""
OF_REQUESTS: tuple[By, ...] = get_args(OfRequests)
