"""vLLM's whole CPU engine as a stage: the scheduler, a tiny model with random weights, and the connector's own worker.

The engine runs in this process. What the model answers is its own, so a scenario's outputs, failing loads and late transfers
are not played here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvtrail.connector.simulate import tiny_model
from kvtrail.connector.simulate.scenario import Workers


class WholeEngine:
    """A `vllm.LLM`, driven step by step."""

    def __init__(
        self,
        folder: Path,
        connector: Mapping[str, Any] | None = None,
        *,
        num_blocks: int = 64,
        block_size: int = tiny_model.BLOCK_SIZE,
        seed: int = 0,
        drafts: int = 0,
        workers: Workers = Workers(),  # noqa: B008 - frozen
        **overrides: Any,
    ) -> None:
        """As for `BareScheduler`; `workers` are the connector's own.

        Raises:
            ValueError: vLLM's CPU attention cannot have such blocks, or the tiny model such long requests.
        """
        if block_size % tiny_model.BLOCK_SIZE:
            raise ValueError(
                f"vLLM's CPU attention needs blocks of a multiple of {tiny_model.BLOCK_SIZE} tokens, not {block_size}"
            )
        if overrides.get("max_model_len", 0) > tiny_model.POSITIONS:
            raise ValueError(f"the tiny model ends at {tiny_model.POSITIONS} tokens, not {overrides['max_model_len']}")
        if drafts:
            raise ValueError("speculative tokens are not run in the whole engine")
        options = {"num_gpu_blocks_override": num_blocks, "block_size": block_size, **overrides}
        self._llm = tiny_model.build(folder, connector, seed=0, **options)
        self._engine = self._llm.llm_engine
        self.scheduler = self._engine.engine_core.engine_core.scheduler
        self.steps = 0

    def add(
        self, request_id: str, prompt: list[int], max_tokens: int, *, priority: int = 0, output: Sequence[int] = ()
    ) -> None:
        """Add a request."""
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        self._engine.add_request(request_id, {"prompt_token_ids": prompt}, params, priority=priority)

    def abort(self, request_id: str) -> None:
        """Abort a request, as when its client goes away."""
        self._engine.abort_request([request_id])

    def step(self) -> int:
        """One step of the engine; returns how many requests it ran, whose tokens the engine does not tell."""
        running = len(self.scheduler.running)
        self._engine.step()
        self.steps += 1
        return max(running, len(self.scheduler.running))

    def close(self) -> None:
        """End the engine."""
        self._engine.engine_core.shutdown()
