"""From events to findings: order, the account of each request, the state of each engine, and the rules that judge them.

In: events, in any order. Out: findings and verdicts; phases, lanes and savings for whoever draws. Pure: no I/O, no clock.
"""
