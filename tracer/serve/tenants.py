"""Display names of tenants: an operator's file maps recorded digests to names."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from kvtrail.refused import Refused
from kvtrail.tracer.model.tenants import DIGEST_BYTES, PLAIN
from kvtrail.tracer.serve.watched_file import WatchedFile, read_yaml

MAX_TENANTS = 100_000
Digest = Annotated[str, Meta(pattern=rf"^([0-9a-f]{{{2 * DIGEST_BYTES}}}|{PLAIN})$")]
Name = Annotated[str, Meta(min_length=1, max_length=100)]
Names = Annotated[dict[Digest, Name], Meta(max_length=MAX_TENANTS)]


def read(path: Path) -> dict[str, str]:
    """The names in a YAML file, by digest, with a line `DIGEST: NAME` for each tenant.

    Raises:
        Refused: it cannot be read, or has another content.
    """
    names: dict[str, str] = read_yaml(path, "tenants", Names, {})
    if odd := next((name for name in names.values() if not name.strip().isprintable()), None):
        raise Refused(f"cannot use the tenants in {path}: the name {odd!r} cannot be printed")
    return {digest: name.strip() for digest, name in names.items()}


class TenantNames(WatchedFile[dict[str, str]]):
    """The names of tenants. The file is reloaded when it changes; if the new content cannot be used, the old names stay."""

    def __init__(self, path: Path | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Without a file, no tenant has a name. Raises Refused if the file cannot be used."""
        super().__init__(path, read, {}, clock=clock)

    def among(self, tenants: Mapping[str, object]) -> dict[str, str]:
        """The names of these tenants, if they have one."""
        names = self.content
        return {tenant: name for tenant in tenants if (name := names.get(tenant)) is not None}
