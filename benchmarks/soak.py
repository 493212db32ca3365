"""A fleet at a steady load for 20 minutes: memory, processor, disk and rate of the sidecar over time.

Every few seconds a line goes into a CSV file; in the end the api must have all of the planted drift and nothing else, and the
lines are drawn.

    python benchmarks/soak.py --rate 20000 --csv soak.csv --plot docs/images/soak.svg
    python benchmarks/soak.py --csv soak.csv --plot docs/images/soak.svg --only-plot
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import altair as alt
import load
from fleet import Engine
from load import MIB, Load, Sidecar

EVERY_S = 5.0
WIDTH, HEIGHT = 640, 90
PANELS = {
    "rate": "spans/s", "processor": "cores", "memory": "MiB resident", "disk": "MiB stored",
}  # fmt: skip
"""The columns beside `seconds`, and what they count."""
Row = dict[str, float]


def run(options: argparse.Namespace, folder: Path) -> int:
    """Load a sidecar and write the file; returns the exit code."""
    sidecar = load.started(options, folder / "store")
    try:
        engines = [Engine(f"engine-{number}", options.drift_every) for number in range(options.engines)]
        until_s = time.monotonic() + options.seconds
        soaked = Load(load.clients(options, sidecar), engines, rate=options.rate, until_s=until_s)
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["seconds", *PANELS])
            writer.writeheader()
            for row in samples(sidecar, soaked):
                writer.writerow({name: round(value, 2) for name, value in row.items()})
                file.flush()
        sent = soaked.end()
        print(f"{sent.spans:,} spans in {soaked.took_s:,.0f} s, {sent.retries} requests sent again")
        faults = load.verify(sidecar.url, sent, engines)
        print("; ".join(faults) or f"all {len(sent.acknowledged)} planted findings were found, and nothing else")
        return int(bool(faults))
    finally:
        sidecar.end()


def samples(sidecar: Sidecar, soaked: Load) -> Iterator[Row]:
    """What the sidecar does while it is loaded, from one look to the next."""
    before_s, spans, cpu_s = time.monotonic(), 0, sidecar.usage().cpu_s
    while soaked.is_going:
        time.sleep(EVERY_S)
        if not soaked.is_going:
            return
        now_s, usage = time.monotonic(), sidecar.usage()
        took_s = now_s - before_s
        yield {
            "seconds": now_s - soaked.began_s, "rate": (soaked.spans - spans) / took_s,
            "processor": (usage.cpu_s - cpu_s) / took_s, "memory": usage.rss / MIB, "disk": sidecar.stored() / MIB,
        }  # fmt: skip
        before_s, spans, cpu_s = now_s, soaked.spans, usage.cpu_s


def plot(table: Path, picture: Path) -> None:
    """Draw a file: one panel for each column, over the minutes."""
    with table.open() as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    data = {"values": [{**row, "minutes": row["seconds"] / 60} for row in rows]}
    base = alt.Chart(alt.InlineData.from_dict(data), width=WIDTH, height=HEIGHT)
    panels = [
        base.mark_line().encode(
            alt.X("minutes:Q", title="minutes" if name == "disk" else None).scale(nice=False),
            alt.Y(f"{name}:Q", title=unit, scale=alt.Scale(zero=True)),
        )
        for name, unit in PANELS.items()
    ]
    alt.vconcat(*panels).configure(background="white").save(picture)


def main() -> None:
    parser = load.arguments()
    parser.description = __doc__
    parser.set_defaults(seconds=1200, rate=20_000)
    parser.add_argument("--csv", type=Path, required=True)
    parser.add_argument("--plot", type=Path, help="an SVG or PNG file")
    parser.add_argument("--only-plot", action="store_true", help="draw the file that is there")
    options = parser.parse_args()
    code = 0
    if not options.only_plot:
        with tempfile.TemporaryDirectory() as folder:
            code = run(options, Path(folder))
    if options.plot is not None:
        plot(options.csv, options.plot)
    sys.exit(code)


if __name__ == "__main__":
    main()
