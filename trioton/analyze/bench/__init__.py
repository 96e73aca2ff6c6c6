"""Bench of `trioton analyze`: a server of its own, variants of the model by load, and what a load shows of each.

Flow: `server` (a child process) ← `http_client` (loads, configuration, answers); `process_tree` (memory, processor
time) and `trioton.perf` (load) → `bench` → `Outcome`
"""
