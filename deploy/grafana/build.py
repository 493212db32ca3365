"""Builds what Grafana provisions: dashboards as JSON, and alerts from the Prometheus rules.

python deploy/grafana/build.py            writes the files
python deploy/grafana/build.py --check    exits with 1 if the files are out of date
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "src"))

from alerts import provisioned  # noqa: E402
from boards import BOARDS  # noqa: E402
from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: E402

RULES = HERE.parent / "prometheus" / "kvtrail.rules.yml"


def built() -> dict[Path, str]:
    """The content of each file, by path."""
    files = {}
    for board in BOARDS:
        data = json.loads(JSONEncoder().encode(board().build()))
        for number, panel in enumerate(data["panels"], start=1):
            panel["id"] = number  # links to a panel use its id
        path = HERE / "dashboards" / f"{data['uid']}.json"
        files[path] = json.dumps(data, indent=2, sort_keys=True) + "\n"
    alerts: str = yaml.safe_dump(
        provisioned(yaml.safe_load(RULES.read_text())), sort_keys=False, width=120, allow_unicode=True
    )
    head = "# Built by deploy/grafana/build.py from deploy/prometheus/kvtrail.rules.yml.\n"
    files[HERE / "provisioning" / "alerting" / "kvtrail.yml"] = head + alerts
    return files


def main() -> int:
    """Write the files, or compare them."""
    differing = [path for path, text in built().items() if not path.exists() or path.read_text() != text]
    if "--check" in sys.argv[1:]:
        for path in differing:
            print(f"{path.relative_to(HERE)} is out of date; run {Path(__file__).name}")
        return int(bool(differing))
    for path, text in built().items():
        path.write_text(text)
        print(path.relative_to(HERE))
    return 0


if __name__ == "__main__":
    sys.exit(main())
