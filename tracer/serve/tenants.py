"""The names of tenants, for people: a file of an operator maps the recorded digests to them."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import yaml

from kvtrail.tracer.model.tenants import DIGEST_BYTES, PLAIN

logger = logging.getLogger("kvtrail")

LOOK_AGAIN_S = 1.0
"""How often the file is looked at."""
MAX_NAME = 100
MAX_TENANTS = 100_000
_DIGEST = re.compile(rf"[0-9a-f]{{{2 * DIGEST_BYTES}}}|{PLAIN}")


class BadTenants(ValueError):
    """A file of tenants cannot be used; the text names it and the reason."""


def read(path: Path) -> dict[str, str]:
    """The names in a file, by digest. It is YAML: a line `DIGEST: NAME` for each tenant.

    Raises:
        BadTenants: it cannot be read, or says something else.
    """
    try:
        found = yaml.load(path.read_text(), Loader=yaml.BaseLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise BadTenants(f"cannot read the tenants: {error}") from error
    except yaml.YAMLError as error:
        raise BadTenants(f"the tenants in {path} are no YAML: {' '.join(str(error).split())}") from error
    if not found:
        return {}
    if not isinstance(found, dict):
        raise BadTenants(f"the tenants in {path} must be lines of `DIGEST: NAME`")
    if len(found) > MAX_TENANTS:
        raise BadTenants(f"{path} names {len(found)} tenants; {MAX_TENANTS} are possible")
    for digest, name in found.items():
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise BadTenants(
                f"{path}: {digest!r} is no digest of a tenant, which has {2 * DIGEST_BYTES} digits from 0 to f, or is"
                f" `{PLAIN}`; `kvtrail tenant` computes it"
            )
        if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME or not name.isprintable():
            raise BadTenants(f"{path}: the name of {digest} must be a text of 1 to {MAX_NAME} characters")
    return {digest: name.strip() for digest, name in found.items()}


class TenantNames:
    """The names of tenants. A file is read again when it has changed; if it cannot be used then, the names stay."""

    def __init__(self, path: Path | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Without a file, no tenant has a name. Raises BadTenants if the file cannot be used."""
        self._path, self._clock = path, clock
        self._looked_s, self._seen = clock(), () if path is None else _stamp(path)
        self._names = {} if path is None else read(path)

    def of(self, tenant: str) -> str | None:
        """The name of a tenant; None if it has none."""
        self._look()
        return self._names.get(tenant)

    def among(self, tenants: Mapping[str, object]) -> dict[str, str]:
        """The names of those of these tenants that have one."""
        self._look()
        return {tenant: name for tenant in tenants if (name := self._names.get(tenant)) is not None}

    def _look(self) -> None:
        if self._path is None or self._clock() - self._looked_s < LOOK_AGAIN_S:
            return
        self._looked_s = self._clock()
        if (stamp := _stamp(self._path)) == self._seen:
            return
        self._seen = stamp
        try:
            self._names = read(self._path)
            logger.info("the tenants in %s have changed", self._path)
        except BadTenants as error:
            logger.error("%s; the names stay as they were", error)


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        about = path.stat()
    except OSError:
        return ()
    return about.st_mtime_ns, about.st_size, about.st_ino
