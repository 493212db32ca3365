"""The only package that tracks requests' events: the account of each request, the state of each engine, and their clocks.

In: the events of one recorder, in order. Out: the state that rules, causes, savings and phases read.
Pure: no I/O, no clock.
"""
