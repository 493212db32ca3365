"""Grouping: the labels by which requests, and the tokens that they computed again, are grouped; and any items by a key."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from enum import StrEnum
from typing import Literal, TypeVar

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


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


def by_key(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """The items with each key, in their order."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
