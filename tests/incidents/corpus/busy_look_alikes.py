"""Legal look-alikes of the rules with a deadline: engines that are busy, slow or paused, and peers before their
turn."""

from __future__ import annotations

from incidents.incident import LookAlike


def _alike(rule: str, what: str, text: str, *, later_s: float = 0.0, connector: str = "Connector") -> LookAlike:
    return LookAlike(
        of="C13" if rule == "late-free" else "C12",
        rule=rule,
        what=what,
        text=text,
        later_s=later_s,
        connector=connector,
    )


def _gave_up(name: str) -> str:
    """A request that its caller ends after 45 seconds of its load."""
    return f"{name}: L 600 c0 -> 599 async\n{name}: A 599\nwait 45\n{name}: end aborted\n"


_ANSWERED = "d: L 600 c0 -> 599 async\nd: A 599\nd: R\nd: A 0\nd: S 599+1\n"
_RUNS = "b: L 600 c0 -> 0\nb: A 0\nb: S 0+600\n"
_RECEIVED = "L 600 c0 -> 512 async\nA 512\nR\n"
_THREE_LOADS = "".join(f"{name}: L 600 c0 -> 512 async\n{name}: A 512\n" for name in "bcd")

LOOK_ALIKES = [
    _alike(
        "never-scheduled", "another request has the only slot", f"{_RUNS}{_RECEIVED}wait 900\nb: end\nA 0\nS 512+88"
    ),
    _alike("never-scheduled", "all slots are taken", f"{_RUNS}{_RECEIVED}wait 900 full\nA 0\nS 512+88"),
    _alike(
        "never-scheduled",
        "the blocks are still loaded into",
        f"b: L 600 c0 -> 512 async\nb: A 512\n{_RECEIVED}wait 110\nb: R\nA 0",
    ),
    _alike(
        "never-scheduled",
        "blocks are kept for another engine",
        f"{_RUNS}b: end delayed lease 3600\n{_RECEIVED}wait 900\nb: sent\nA 0\nS 512+88",
    ),
    _alike("never-scheduled", "the scheduler is paused", f"{_RECEIVED}wait 900 paused\nA 0\nS 512+88"),
    _alike(
        "endless-deferral",
        "asked again after minutes",
        f"{_RUNS}L 600 c0 -> later\nwait 900\nL 600 c0 -> 0\nA 0\nb: end",
    ),
    _alike(
        "endless-deferral", "asked seldom", f"{_RUNS}" + "L 600 c0 -> later\nwait 100\n" * 9 + "L 600 c0 -> 0\nb: end"
    ),
    _alike("endless-deferral", "all slots are taken", f"{_RUNS}L 600 c0 -> later\nwait 900 full\nL 600 c0 -> 0\nA 0"),
    _alike(
        "endless-deferral",
        "paused for an update of the weights",
        "L 600 c0 -> later\nwait 900 paused\nL 600 c0 -> 0\nA 0",
    ),
    _alike(
        "endless-deferral",
        "the prefill has not begun",
        "L 600 c0 -> later\nwait 300\nL 600 c0 -> 599 async",
        connector="MooncakeConnector",
    ),
    _alike(
        "never-scheduled",
        "a low priority",
        f"{_RUNS}L 600 c0 -> 0\nwait 660\nL 600 c0 -> 0\nwait 660\nL 600 c0 -> 0\nA 0\nb: end",
    ),
    _alike("never-scheduled", "paused", "L 600 c0 -> 0\nwait 900 paused\nL 600 c0 -> 0\nA 0\nS 0+600"),
    _alike(
        "never-scheduled", "no blocks for so long a prompt", f"{_RUNS}L 9000 c0 -> 0\nwait 2000 full\nA 0\nS 0+9000"
    ),
    _alike("stuck-load", "one load after the other", f"{_THREE_LOADS}wait 100\nb: R\nwait 100\nc: R\nwait 100\nd: R"),
    _alike("stuck-load", "a large load", "L 200000 c0 -> 199999 async\nA 199999\nwait 300\nR"),
    _alike(
        "stuck-load",
        "many loads at once",
        "".join(f"{n}: L 20000 c0 -> 19999 async\n{n}: A 19999\n" for n in "bcdefgh") + "wait 240",
    ),
    _alike(
        "stuck-load",
        "a push from a prefill with a queue",
        "L 600 c0 -> 599 async\nA 599\nwait 150\nR",
        connector="NixlPushConnector",
    ),
    _alike(
        "stuck-load",
        "within Mooncake's limit",
        "L 600 c0 -> 599 async\nA 599\nwait 470\nR",
        connector="MooncakeConnector",
    ),
    _alike("stuck-load", "the scheduler is paused", "L 600 c0 -> 599 async\nA 599\nwait 900 paused\nR"),
    _alike("stuck-step", "a step of minutes", f"{_RUNS}wait 230 stuck\nwait 10 busy\nwait 230 stuck\nb: end"),
    _alike("stuck-step", "a busy engine", f"{_RUNS}wait 900 full\nb: end"),
    _alike("stuck-step", "paused for an update of the weights", f"{_RUNS}wait 200 stuck\nwait 900 paused\nb: end"),
    _alike("stuck-step", "its requests wait for their callers' next input", f"{_RUNS}wait 900 rests\nb: end"),
    _alike("stuck-step", "its recorder is behind", f"{_RUNS}wait 10 stuck\n" + "wait 300 silent\nwait 6 stuck\n" * 9),
    _alike("stuck-step", "a recorder that does not see what runs", f"{_RUNS}wait 900 idle\nb: end"),
    _alike("late-free", "a lease of an hour", "end delayed lease 3600\nwait 3590\nfreed expired", later_s=900),
    _alike("late-free", "the scheduler is paused", "end delayed\nwait 900 paused\nsent"),
    LookAlike(
        of="N5", rule="poll-starvation", what="the scheduler is paused", text="end delayed\nwait 300 paused\nsent"
    ),
    LookAlike(
        of="N5", rule="poll-starvation", what="a long step", text=f"end delayed\n{_RUNS}wait 90 idle\nb: end\nsent"
    ),
    _alike(
        "stalled-connector",
        "loads that are given up arrive",
        f"{_gave_up('b')}{_gave_up('c')}b: R\n{_gave_up('d')}{_gave_up('e')}c: R\nwait 60",
    ),
    _alike(
        "stalled-connector",
        "one is answered",
        f"{_gave_up('b')}{_gave_up('c')}{_ANSWERED}{_gave_up('e')}{_gave_up('f')}wait 20\nb: R\nc: R",
    ),
    _alike("stalled-connector", "two that left", f"{_gave_up('b')}{_gave_up('c')}wait 400"),
    _alike(
        "stalled-connector",
        "a busy engine did not ask again",
        _RUNS + "".join(f"{n}: L 600 c0 -> later\nwait 60\n{n}: end aborted\n" for n in "cdefgh"),
    ),
    _alike(
        "stalled-connector",
        "callers who leave at once",
        "".join(f"{n}: L 600 c0 -> 599 async\n{n}: A 599\nwait 3\n{n}: end aborted\n" for n in "bcdefgh")
        + "".join(f"{n}: R\n" for n in "bcdefgh"),
    ),
    _alike(
        "stalled-connector",
        "a prefill with a queue",
        "".join(_gave_up(n) for n in "bcdefgh") + "".join(f"{n}: R\n" for n in "bcdefgh"),
        connector="MooncakeConnector",
    ),
    _alike(
        "stalled-connector",
        "they ran when their callers left",
        "".join(f"{n}: L 600 c0 -> 0\n{n}: A 0\n{n}: S 0+600\nwait 50\n{n}: end aborted\n" for n in "bcdefgh"),
    ),
]
