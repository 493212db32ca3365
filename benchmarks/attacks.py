"""What hostile senders cost: a real sidecar's memory, and how long a well-behaved post waits meanwhile.

Each attack has a sidecar of its own, with a file of tokens. `tests/attackers.py` says what the attackers send. It prints the
resident memory before, at most, and ten seconds after the attack, and the longest wait of small posts that hold a token; exit
code 1 where memory exceeds 512 MiB, or a post waits for longer than a second.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from attackers import ATTACKS, HEAVIEST, TOKEN, Attack, attacked, over_http
from processes import listening

ALL = {**ATTACKS, **{f"taken: {name}, HTTP": Attack(8, over_http(make)) for name, make in HEAVIEST.items()}}
"""Those that are refused, and requests as heavy as they may be."""
MAX_MIB, MAX_WAIT_S = 512, 1.0
REST_S = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="how long each attack lasts")
    parser.add_argument("--only", choices=sorted(ALL), action="append", help="an attack; may be given several times")
    arguments = parser.parse_args()
    failed = False
    print("| attack | MiB before | at most | 10 s after | longest wait of a well-behaved post | answers |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in arguments.only or ALL:
        with tempfile.TemporaryDirectory() as folder:
            tokens = Path(folder) / "tokens"
            tokens.write_text(f"{TOKEN}\n")
            tracer = listening(Path(folder), "--nice", "0", "--token-file", str(tokens))
            try:
                cost = attacked(tracer, ALL[name], seconds=arguments.seconds)
                time.sleep(REST_S)
                after = cost.resident_mib()
            finally:
                tracer.kill()
        failed |= cost.most_mib > MAX_MIB or cost.longest_wait_s > MAX_WAIT_S
        said = ", ".join(f"{count} {answer}" for answer, count in cost.answers.most_common(3))
        print(
            f"| {name} | {cost.before_mib} | {cost.most_mib} | {after} | {cost.longest_wait_s:.2f} s"
            f" of {cost.posts} | {said} |",
            flush=True,
        )
    sys.exit(failed)


if __name__ == "__main__":
    main()
