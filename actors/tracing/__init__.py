"""Traces: what is sampled, recorded and handed to files or to OpenTelemetry."""
