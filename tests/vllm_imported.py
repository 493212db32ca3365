"""What `forks.py` imports before it forks: vLLM's engine and scheduler, the model, and nothing of LMCache."""

import vllm.model_executor.models.opt
import vllm.v1.worker.cpu_worker
from vllm import LLM

from kvtrail.connector.simulate import stages, tiny_model

__all__ = ["LLM", "stages", "tiny_model", "vllm"]
