"""What is said of a connector that lacks something here."""

from __future__ import annotations

import sys
import types

import pytest

from kvtrail.connector.offload import UntracedOffloadConnector
from kvtrail.connector.registration import configuration
from kvtrail.connector.simulate.run import Unbuildable, play
from kvtrail.connector.simulate.scenario import Scenario


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        (
            ImportError("FlexKV is not installed. See its page."),
            "cannot be made here: FlexKV is not installed. See its page.$",
        ),
        (
            ModuleNotFoundError("No module named 'a.b'", name="a.b"),
            "No module named 'a.b'. Install a, or put the folder",
        ),
    ],
)
def test_a_connector_that_lacks_something_says_what(
    monkeypatch: pytest.MonkeyPatch, lacking: ImportError, said: str
) -> None:
    class Lacking(UntracedOffloadConnector):
        def __init__(self, *arguments: object, **named: object) -> None:
            raise lacking

    module = types.ModuleType(f"lacking_by_{type(lacking).__name__}")  # a traced class is made once for a name
    module.Lacking = Lacking  # type: ignore[attr-defined]
    Lacking.__module__, Lacking.__qualname__ = module.__name__, "Lacking"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.raises(Unbuildable, match=said):
        play(Scenario(arrivals=()), configuration(f"{module.__name__}:Lacking", {}))
