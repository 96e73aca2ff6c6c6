"""Tracing: sampling, recording and export of traces, to Triton's JSON files or to OpenTelemetry."""
