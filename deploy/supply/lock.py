"""Requirements with hashes, for one platform, of what pip would install there: its `--report` is read from standard input.

    pip install --dry-run --ignore-installed --quiet --report - --constraint constraints.txt 'WHEEL[tracer]' \
        | python deploy/supply/lock.py > lock.txt
    pip install --require-hashes --no-deps --requirement lock.txt && pip install --no-deps WHEEL

No host is named in them. kvtrail itself is left out: its wheel is the one that was just built.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    for each in sorted(json.load(sys.stdin)["install"], key=lambda each: str(each["metadata"]["name"]).lower()):
        about, archive = each["metadata"], each["download_info"]["archive_info"]
        if about["name"] != "kvtrail":
            print(f"{about['name']}=={about['version']} --hash=sha256:{archive['hashes']['sha256']}")


if __name__ == "__main__":
    main()
