"""The labels by which requests, and the tokens that they computed again, are grouped."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal


class By(StrEnum):
    """The labels of a request, and of the tokens that its admissions computed again."""

    ENGINE = "engine"
    MODEL = "model"
    """The model of the engine. Stores do not group by it."""
    CONNECTOR = "connector"
    TENANT = "tenant"
    PREFIX = "prefix"
    """For requests, the prefix from `model.prefixes.prefix_of`; for wasted tokens, the prefix at which the loss begins."""
    CAUSE = "cause"
    TIER = "tier"
    REQUEST = "request"


OfRequests = Literal[By.ENGINE, By.MODEL, By.CONNECTOR, By.TENANT, By.PREFIX]
"""The labels of requests; the others are labels of wasted tokens."""
