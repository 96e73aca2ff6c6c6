"""Statistics and metrics: counters of model versions, latency histograms and summaries, and metrics that models
define."""
