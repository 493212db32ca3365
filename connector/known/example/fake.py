"""vLLM's ExampleConnector: a prompt is stored as a folder, and a lookup asks whether that folder exists."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvtrail.connector.known.fake import Fake, Job


class ExampleFake(Fake):
    """Replaces the workers' files: a prompt that a step stores exists from the next step on, as an empty folder."""

    def extra(self, folder: Path) -> dict[str, Any]:
        return {"shared_storage_path": str(folder / "stored")}

    def jobs(self, connector: Any, plan: Any) -> Iterator[Job]:
        for request in plan.requests:
            if request.is_store:
                connector._generate_foldername_debug(request.token_ids, request.mm_hashes, create_folder=True)
        yield from ()


FAKE = ExampleFake
