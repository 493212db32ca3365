"""The pages of docs that are made of the rules' pages: docs/rules.md, and the rules' table in docs/runbooks.md."""

from __future__ import annotations

import re
from pathlib import Path

from kvtrail.tracer.rules import pages

_LINK = re.compile(r"\]\(([^)\s]+)\)")

_HEAD = (
    "# Rules\n\nGenerated from the rules' pages by `python benchmarks/recall.py --write`; a test fails when the two"
    " differ.\n\nSymbols, all counting tokens: N of the request, c computed by vLLM, h matched in the connector's"
    " store, e returned by a lookup, x allocated.\n\nA rule's level is the least [level](settings.md) of recording at"
    " which it finds its drift; at `detailed`, the default, all of them do.\n\nA request's verdict is `drift` if a rule"
    " found something, `ok` if at least one rule judged it, nothing of it is missing and it has ended, and `unknown`"
    " otherwise. `ok` says that the recorded numbers of the connector and the scheduler agree with each other, as far as"
    " these rules look. It says nothing of the request's outcome: one that failed with HTTP 500, was aborted, or was slow"
    " may be `ok`. Nor does it say that the answer is right: bytes are judged only where they were compared.\n\n"
    "For tests and demos, a known bug can be injected into any connector as `Faulty:<fault>:<connector>`. Four come with"
    " kvtrail: `stale-lookup`, `over-report` and `under-report`, which the rules of the same names find, and"
    " `blocks-exchanged`, which `byte-drift` finds; the tests have one for each rule. Rules about bytes judge what the"
    " engine's workers found when they compared blocks (`kv.block_check`).\n"
)


def rules_page() -> str:
    """docs/rules.md, as far as it is made of the pages: each rule with its runbook."""
    sections = (f"{page.section(rule)}\n{_LINK.sub(_link, page.runbook)}\n" for rule, page in pages.every().items())
    return "\n".join([_HEAD, *sections])


def runbook_table() -> str:
    """The table of the rules in docs/runbooks.md."""
    rows = ["| rule | severity | about |", "| --- | --- | --- |"]
    for rule, page in pages.every().items():
        rows.append(f"| [{rule}](rules.md#{rule}) | {', or '.join(page.severities)} | {page.title} |")
    return "\n".join(rows) + "\n"


def _link(link: re.Match[str]) -> str:
    """A link of a rule's page, as it is in docs/rules.md: links between rules lead to sections."""
    target = link[1]
    rule = Path(target.partition("#")[0]).stem.replace("_", "-")
    return f"](#{rule})" if rule in pages.files() else f"]({target.removeprefix('../../../docs/')})"
