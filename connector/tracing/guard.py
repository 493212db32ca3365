"""What happens when a lookup's answer breaks the contract: observe, heal or raise."""

from __future__ import annotations

from kvtrail.tracer.model import contract


class ContractBreach(RuntimeError):
    """A lookup's answer broke the contract under `guard: raise`."""


SAFE_ANSWER = (0, False)
"""Nothing is loaded, vLLM computes the tokens itself; a connector must expect that its answer is not taken."""


def breaks(total: int, computed: int, matched: int | None, returned: int | None, is_async: bool) -> bool:
    """Whether a lookup's answer breaks the contract; all counts are tokens."""
    return contract.breach(total, computed, matched, returned, is_async) is not None


def message(request_id: str, total: int, computed: int, matched: int | None, returned: int | None) -> str:
    """Why the engine is stopped, in one sentence."""
    at_most = contract.new_at_most(total, computed, matched)
    return (
        f"kvtrail: the connector returned {returned} new tokens for request {request_id}, of whose {total} tokens"
        f" {computed} are computed: at most {at_most} can be new"
    )
