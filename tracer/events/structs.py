"""msgspec's structs. An engine may lack msgspec: there the classes only say what is recorded, and none is ever made."""

from __future__ import annotations

try:
    from msgspec import Meta as Meta
    from msgspec import Struct as Struct
except ImportError:

    class Meta:  # type: ignore[no-redef]
        """Bounds, which only a decoder asks for."""

        def __init__(self, **bounds: object) -> None: ...

    class Struct:  # type: ignore[no-redef]
        """Takes the options of a struct."""

        def __init_subclass__(cls, **options: object) -> None: ...
