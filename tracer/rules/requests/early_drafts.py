"""early-drafts: a step of a prompt carries speculative tokens."""

from __future__ import annotations

from kvtrail.tracer.events.events import Schedule
from kvtrail.tracer.events.semconv import Level
from kvtrail.tracer.ledger.account import Account
from kvtrail.tracer.model.findings import OK, Drift, Judgement, Severity
from kvtrail.tracer.rules import RequestRule


class EarlyDrafts(RequestRule[Schedule]):
    """A step that computes the end of a prompt carries speculative tokens.

    Invariant: a step of s tokens from n on with d > 0 speculative tokens among them has n >= P, for a prompt of P tokens,
    or is padded: s - d = 1. Only the first epoch is judged, up to a failed load: after these, output is computed again.

    A recurrent state is that after the step's last token: with drafts at the prompt's end it is the state of tokens that
    nobody may have accepted. Without recurrent layers that does no harm, but it is the same fault: vLLM drops these drafts
    for every model, so every model is judged. It pads a request with one token left to the size of its decode steps,
    and counts what it pads as drafts. Source: vLLM, `Scheduler.update_draft_token_ids`, which ignores the drafts of a
    prompt's chunks; the incident is vLLM #30618 (https://github.com/vllm-project/vllm/pull/30618). Needs every event of the
    request, and its steps at level `detailed`.
    """

    id = "early-drafts"
    only_with = "drafted"
    severity = Severity.WRONG_OUTPUT
    level = Level.DETAILED
    classes = ("C4",)
    hint = "Drafts were kept for a request before its prompt was computed: drop them until its first token is sampled."
    explanation = (
        "The step at {0} begins at token {begins} of a prompt of {prompt}, computes {computes} of its tokens, and carries"
        " {drafted} speculative tokens: where layers are recurrent, a recurrent state after it is that of {end} tokens"
        " instead of {prompt}."
    )

    def judge(self, event: Schedule, account: Account) -> Judgement:
        if not event.drafted or event.epoch or account.prompt is None or account.evidence.failed_ever:
            return None
        computes = event.scheduled - event.drafted
        if event.computed >= account.prompt or computes == 1:
            return OK
        numbers = {
            "begins": event.computed,
            "prompt": account.prompt,
            "computes": computes,
            "drafted": event.drafted,
            "end": event.computed + event.scheduled,
        }
        return Drift(numbers, [event])
