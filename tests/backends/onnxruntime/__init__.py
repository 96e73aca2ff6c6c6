"""Tests of the onnxruntime backend on models made on the spot, and on real ones from packages."""
