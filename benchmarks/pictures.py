"""The pictures of docs/images/, from the screenshots that the browser tests leave in test-artifacts/.

With fewer colours they have a third of the size.

    python -m pytest tests/e2e/test_oncall_tasks.py
    python benchmarks/pictures.py live request        these two; all of them without a name
"""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
TAKEN, SHOWN = ROOT / "test-artifacts", ROOT / "docs/images"
PICTURES = {"request": "task-01-died", "live": "live"}
"""By the name of each picture: its screenshot."""
COLOURS = 128


def main() -> None:
    """Make the named pictures, if their screenshots are there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *PICTURES], help="the pictures to make")
    for name in parser.parse_args().names or PICTURES:
        source = TAKEN / f"dashboard-{PICTURES[name]}.png"
        if not source.exists():
            print(f"{name}: there is no {source.relative_to(ROOT)}")
            continue
        picture = SHOWN / f"{name}.png"
        Image.open(source).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(picture, optimize=True)
        print(f"{name}: {picture.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
