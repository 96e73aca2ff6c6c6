"""Made by `python -m tests.generate` from `protocol/proto/*.proto`; do not edit."""
