"""Says what `pip-audit --format json` has found, which is read from standard input; `make audit` runs both.

pip-audit passes over what its database does not know, or could not be asked about, and calls that a success. Here it is none.

Exit code: 0 nothing is known against any package that was looked up, 1 something is, 3 nothing could be looked up.
"""

from __future__ import annotations

import json
import sys
from typing import Any

VULNERABLE, NOT_LOOKED_UP = 1, 3


def main() -> int:
    text = sys.stdin.read()
    dependencies: list[dict[str, Any]] = json.loads(text)["dependencies"] if text.strip() else []
    looked_up = [each for each in dependencies if "skip_reason" not in each]
    if not looked_up:
        print("No database of known vulnerabilities answers for any package: NOTHING WAS CHECKED.")
        return NOT_LOOKED_UP
    for each in looked_up:
        for found in each["vulns"]:
            fixed = f", mended in {', '.join(found['fix_versions'])}" if found["fix_versions"] else ""
            print(f"{each['name']} {each['version']}: {found['id']}{fixed}")
    skipped = [each["name"] for each in dependencies if "skip_reason" in each]
    if skipped:
        print(f"Not in the database, and not checked: {', '.join(skipped)}.")
    vulnerable = sum(bool(each["vulns"]) for each in looked_up)
    print(f"{len(looked_up)} packages were looked up; {vulnerable or 'none'} of them with known vulnerabilities.")
    return VULNERABLE if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
