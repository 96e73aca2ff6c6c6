"""`trioton perf-analyzer`: NVIDIA perf_analyzer's command line, reports and exit codes, over the generator of `perf`.

Flow: words → `Options` → `wiring` (target and data) → `levels` (search) → `trials` (windows until they are alike) →
`printed`, `csv_report`, `profile_export`. Model Analyzer starts it in place of the binary.
"""
