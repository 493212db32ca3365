"""Reports the findings of `pip-audit --format json`, read from standard input; `make audit` runs both.

pip-audit skips packages that its database does not have, or that could not be looked up, and exits with 0. This does not.

Exit code: 0 no known vulnerabilities in the packages that were looked up, 1 some, 3 no package could be looked up.
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
            fixed = f", fixed in {', '.join(found['fix_versions'])}" if found["fix_versions"] else ""
            print(f"{each['name']} {each['version']}: {found['id']}{fixed}")
    skipped = [each["name"] for each in dependencies if "skip_reason" in each]
    if skipped:
        print(f"Not in the database, and not checked: {', '.join(skipped)}.")
    vulnerable = sum(bool(each["vulns"]) for each in looked_up)
    print(f"{len(looked_up)} packages were looked up; {vulnerable or 'none'} of them with known vulnerabilities.")
    return VULNERABLE if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main())
