"""Writes the pins: `make pins`, or `make pins ARGS="AREA ..."` for some of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from kvtrail.connector.simulate.tiny_model import prepare_environment
from pins import answers, contents, judged, old, otlp, path_of, plain, read, write
from pins.day import Day, stored

ALONE: Mapping[str, Callable[[], dict[str, Any]]] = {
    each.__name__: each
    for each in (judged.golden, judged.released, judged.incidents, judged.look_alikes, otlp.otlp, old.old_stores)
}
OF_THE_DAY: Mapping[str, Callable[[Day], dict[str, Any]]] = {
    each.__name__: each for each in (answers.api_sqlite, answers.api_clickhouse, contents.pages)
}
CHECK = "check"
AREAS = (*ALONE, *OF_THE_DAY, CHECK)


def main(wanted: list[str]) -> None:
    """Write the pins of these areas, in this order."""
    if unknown := [area for area in wanted if area not in AREAS]:
        sys.exit(f"no area: {', '.join(unknown)}; there are {', '.join(AREAS)}")
    for area in [area for area in wanted if area in ALONE]:
        write(area, ALONE[area]())
    if chosen := [area for area in wanted if area in OF_THE_DAY]:
        with stored() as day:
            made = {area: plain(OF_THE_DAY[area](day)) for area in chosen}
        for area in sorted(made, reverse=True):  # those from SQLite before those that refer to them
            write(
                area, answers.as_the_other(made[area], read("api_sqlite")) if area == "api_clickhouse" else made[area]
            )
    if CHECK in wanted:
        prepare_environment()  # vLLM reads its settings when it is imported
        from pins import checked

        write(CHECK, checked.check())
    for area in wanted:
        print(f"{path_of(area).name}: {path_of(area).stat().st_size // 1000} kB")


if __name__ == "__main__":
    main(sys.argv[1:] or list(AREAS))
