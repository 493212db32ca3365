"""The names of tenants, for people: a file of an operator maps the recorded digests to them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import yaml

from kvtrail.tracer.model.tenants import DIGEST_BYTES, PLAIN
from kvtrail.tracer.serve.watched_file import Unusable, WatchedFile, read_yaml

MAX_NAME = 100
MAX_TENANTS = 100_000
_DIGEST = re.compile(rf"[0-9a-f]{{{2 * DIGEST_BYTES}}}|{PLAIN}")


def read(path: Path) -> dict[str, str]:
    """The names in a file, by digest. It is YAML: a line `DIGEST: NAME` for each tenant.

    Raises:
        Unusable: it cannot be read, or says something else.
    """
    found = read_yaml(path, "tenants", partial(yaml.load, Loader=yaml.BaseLoader))
    if not found:
        return {}
    if not isinstance(found, dict):
        raise Unusable(f"the tenants in {path} must be lines of `DIGEST: NAME`")
    if len(found) > MAX_TENANTS:
        raise Unusable(f"{path} names {len(found)} tenants; {MAX_TENANTS} are possible")
    for digest, name in found.items():
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise Unusable(
                f"{path}: {digest!r} is no digest of a tenant, which has {2 * DIGEST_BYTES} digits from 0 to f, or is"
                f" `{PLAIN}`"
            )
        if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME or not name.isprintable():
            raise Unusable(f"{path}: the name of {digest} must be a text of 1 to {MAX_NAME} characters")
    return {digest: name.strip() for digest, name in found.items()}


class TenantNames:
    """The names of tenants. A file is read again when it has changed; if it cannot be used then, the names stay."""

    def __init__(self, path: Path | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Without a file, no tenant has a name. Raises Unusable if the file cannot be used."""
        self._file = None if path is None else WatchedFile(path, read, clock=clock)

    def of(self, tenant: str) -> str | None:
        """The name of a tenant; None if it has none."""
        return self._names.get(tenant)

    def among(self, tenants: Mapping[str, object]) -> dict[str, str]:
        """The names of those of these tenants that have one."""
        names = self._names
        return {tenant: name for tenant in tenants if (name := names.get(tenant)) is not None}

    @property
    def _names(self) -> Mapping[str, str]:
        return {} if self._file is None else self._file.content
