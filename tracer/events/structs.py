"""msgspec's structs. If an engine lacks msgspec, the classes only describe what is recorded and are never instantiated."""

from __future__ import annotations

try:
    from msgspec import Meta as Meta
    from msgspec import Struct as Struct
except ImportError:

    class Meta:  # type: ignore[no-redef]
        """Bounds of a field. Only a decoder reads them."""

        def __init__(self, **bounds: object) -> None: ...

    class Struct:  # type: ignore[no-redef]
        """Accepts the options of a struct and ignores them."""

        def __init_subclass__(cls, **options: object) -> None: ...
