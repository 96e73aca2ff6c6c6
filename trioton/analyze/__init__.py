"""Analyzer of `trioton analyze`: finds the configuration of a model that keeps a latency at the greatest rate.

Flow: `command` → `space` (candidates from what the model can do) → `search` (which is measured next) → `bench` (one
server, variants by load, load of `trioton.perf`) → `results` (report, JSON, CSV, configurations) → `apply`. `live`
proposes from what a running server tells.
"""
