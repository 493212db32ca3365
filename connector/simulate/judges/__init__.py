"""Judges of a run that need no recording: what was computed and read, what a store held and lost, what is left in the end.

In: the calls, steps and attributes of a bare scheduler and its connector. Out: failures. The rules, which judge recorded
events, are in `tracer/`.
"""
