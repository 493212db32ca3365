"""crossed-handoff: a request takes the KV of another prompt."""

from __future__ import annotations

from typing import Any

from kvtrail.tracer.events.events import Handoff, Xfer
from kvtrail.tracer.ledger.engine_state import Engine
from kvtrail.tracer.model.findings import OK, Drift, Finding, Judgement, Severity, Unknown
from kvtrail.tracer.rules import EngineRule


class CrossedHandoff(EngineRule[Handoff | Xfer]):
    """A request is to read what another engine has computed for another prompt.

    Invariant: the first n token ids of the prompt are the same in the engine that gives and in the one that takes, n the
    tokens that are handed over, or the shorter of the two prompts.

    An engine that writes what it gives chooses the request by itself: what it writes is compared with that request's prompt.
    A prefill engine may compute a few tokens less than the prompt has; that is no other prompt. Source: vLLM, the connectors
    compare no token: the NIXL connector's lookup answers with the length of its own prompt
    (`NixlPullConnectorScheduler.get_num_new_matched_tokens`), whatever was computed; the incident is vLLM #52234
    (https://github.com/vllm-project/vllm/issues/52234), where a reference was used for another request than it was made for.
    Needs the spans of both engines.
    """

    id = "crossed-handoff"
    severity = Severity.WRONG_OUTPUT
    classes = ("N11",)
    needs_history = False
    hint = (
        "The router gave a request the `kv_transfer_params` of another one, or kept them from an earlier turn. They belong to"
        " one prompt, and are used once."
    )
    mitigation = "With `guard: heal` on both engines such a request loads nothing."
    explanation = (
        "At {0} engine {giver} ended request {other} with a prompt of {given_prompt} tokens, and kept its KV for another"
        " engine. At {1} this request, with a prompt of {prompt} tokens, is to read it: {why}. If it does, its answer"
        " is one to another prompt."
    )

    written = (
        "At {0} engine {giver} ended request {other} with a prompt of {given_prompt} tokens, and kept its KV for another"
        " engine. At {1} it wrote that into the blocks of this request, with a prompt of {prompt} tokens, which is to"
        " take something else ({2}): {why}. Its answer will be one to another prompt."
    )

    def judge(self, event: Handoff | Xfer, engine: Engine) -> Judgement:
        drifts = tuple(each for each in map(_written, engine.handoffs.written(event)) if isinstance(each, Drift))
        if drifts or isinstance(event, Xfer):
            return drifts or None
        pair = engine.handoffs.pair(event)
        if pair is None or event.declines:
            return None  # judged when the other engine's side comes; who declines reads nothing
        if event.takes:
            return None if pair.given is None else _compared(pair.given, event)
        if pair.given is not None or not pair.takers:
            return None  # the first case: another child of a MultiConnector has reported it
        found = [_compared(event, taken) for taken in pair.takers.values()]
        drifts = tuple(each for each in found if isinstance(each, Drift))
        return drifts or (OK if OK in found else Unknown.UNSEEN)

    def template(self, finding: Finding) -> str:
        return self.written if len(finding.witness) > 2 else self.explanation

    def values(self, finding: Finding) -> dict[str, Any]:
        numbers = finding.numbers
        if numbers["shorter"]:
            return {"why": f"it is shorter than the {numbers['handed']} tokens that are handed over"}
        return {"why": f"the first {numbers['compared']} tokens of the two differ"}


def _written(found: tuple[Handoff, Handoff, Xfer]) -> Drift | Unknown | Any:
    given, taken, write = found
    compared = _compared(given, taken)
    return Drift(compared.numbers, [given, write, taken]) if isinstance(compared, Drift) else compared


def _compared(given: Handoff, taken: Handoff) -> Drift | Unknown | Any:
    """Whether both sides are about one prompt."""
    if given.digest is None or taken.digest is None or given.digest_tokens is None or taken.digest_tokens is None:
        return Unknown.UNSEEN
    shorter = taken.prompt is not None and taken.prompt < given.digest_tokens
    if given.digest_tokens != taken.digest_tokens and not shorter:
        return Unknown.UNSEEN
    if given.digest == taken.digest:
        return OK
    numbers = {
        "giver": given.engine,
        "other": given.request,
        "given_prompt": given.prompt,
        "prompt": taken.prompt,
        "compared": taken.digest_tokens,
        "handed": given.digest_tokens,
        "shorter": shorter,
    }
    return Drift(numbers, [given, taken])
