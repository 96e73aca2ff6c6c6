"""Attacks from outside: fuzzed inputs for each protocol, and a long mixed load with faults, both by a seed.

`python -m tests.attack.fuzz` and `python -m tests.attack.soak` run them for as long as one likes; the tests beside them
run a little of each.
"""
