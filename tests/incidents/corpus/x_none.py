"""X: what was reported and is no drift."""

from incidents.incident import Incident, lmcache, vllm

INCIDENTS = [
    Incident(
        id="vllm-42422",
        of="X",
        url=vllm(42422),
        text="""
            L 600 c0 h512 -> 512 async
            A 512 [1-19]
            error [9-16]
            R failed
            A 0 [1-19]
            S 256+344 [1-19]
        """,
        why="Withdrawn by its reporter: the error had been reported.",
    ),
    Incident(
        id="LMCache-2703",
        of="X",
        url=lmcache(2703),
        text="""
            L 836 c832 h768 -> 0
            A 0
            S 832+4
        """,
        why="A need to load of -64 is printed where vLLM holds more than the store, and 0 is returned.",
    ),
    Incident(
        id="LMCache-509",
        of="X",
        url=lmcache(509, "pull"),
        text="""
            L 749 c0 h256 -> 256
            A 0
            S 0+749
        """,
        why="An answer need not be taken: 0 external tokens may follow it.",
    ),
]
