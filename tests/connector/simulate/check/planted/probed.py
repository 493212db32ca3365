"""The host cache and its bugs, with the probe."""

from __future__ import annotations

from planted.bugs import BUGS
from planted.host_cache import HostCache

PROBED = {
    cls.__name__: type(cls.__name__, (cls,), {"kvtrail_probe": "planted.probe:HostCacheProbe"})
    for cls in (HostCache, *BUGS.values())
}
globals().update(PROBED)
