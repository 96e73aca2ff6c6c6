"""The benchmark: this server and NVIDIA's Triton, side by side, under NVIDIA's own load generator.

`make bench` (or `python -m tests.bench`) goes through these modules in this order:

- `rows`: what is measured
- `prepare`: NVIDIA's server and `perf_analyzer` from their wheels into `.bench/`
- `peers`: how each server is started, when it is ready, how it ends
- `check`: both servers give the same right answers before anything is measured
- `contest`: whose turn it is, and what became of each turn
- `load`: one turn, that is one run of `perf_analyzer`, and its CSV report
- `memory`: what a server's processes hold
- `processor`: what they have used of the processor
- `machine`: what it was measured on
- `report`: the tables, and their place in `docs/benchmarks.md`

The models that both servers load unchanged are in `models/`. `docs/benchmarks.md` says what the figures mean.
"""
