"""One gRPC call: its request messages, their framing and compression, and its responses."""
