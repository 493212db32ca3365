"""Numbers on their way from a GPU to the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


class ToHost:
    """Tensors that are copied to the host behind the work that is queued; arrays are there at once."""

    def __init__(self, parts: Sequence[torch.Tensor | np.ndarray[Any, Any]]) -> None:
        self._parts = parts
        self._copied: torch.cuda.Event | None = None
        if any(isinstance(part, torch.Tensor) and part.is_cuda for part in parts):
            self._parts = [_pinned(part) if isinstance(part, torch.Tensor) else part for part in parts]
            self._copied = torch.cuda.Event()
            self._copied.record()

    def is_ready(self) -> bool:
        """Whether nobody has to wait for them."""
        return self._copied is None or self._copied.query()

    def arrays(self) -> list[np.ndarray[Any, Any]]:
        """All of them, in order."""
        if self._copied is not None:
            self._copied.synchronize()
        return [part if isinstance(part, np.ndarray) else part.cpu().numpy() for part in self._parts]


def _pinned(numbers: torch.Tensor) -> torch.Tensor:
    host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    host.copy_(numbers, non_blocking=True)
    return host
