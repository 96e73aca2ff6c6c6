"""Inference over gRPC: ModelInfer and ModelStreamInfer, with and without a task for each request."""
