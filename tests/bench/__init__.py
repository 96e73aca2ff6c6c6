"""The benchmark: this server and NVIDIA's Triton, side by side, under NVIDIA's own load generator.

`make bench` (or `python -m tests.bench`) goes through these modules in this order:

- `rows`: what is measured
- `prepare`: NVIDIA's server and `perf_analyzer` from their wheels into `.bench/`
- `peers`: how each server is started, when it is ready, how it ends
- `entrants`: the servers of a run, and what is learnt of them
- `check`: all of them give the same right answers before anything is measured
- `contest`: whose turn it is, and what became of each turn
- `load`: one turn, that is one run of `perf_analyzer` (`analyzer`) or `wrk`
- `memory`: what a server's processes hold
- `processor`: what they have used of the processor
- `http_versions`: what HTTP/2 costs beside HTTP/1.1, by `h2load`
- `machine`: what it was measured on
- `goals`, `verdicts`: what the figures are held to, and whether they meet it
- `report`: all of the tables, and their place in `docs/benchmarks.md`

The models that both servers load unchanged are in `models/`. `docs/benchmarks.md` says what the figures mean.
"""
