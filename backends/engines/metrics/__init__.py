"""Metrics of engines, in vLLM's names and in OpenTelemetry's."""
