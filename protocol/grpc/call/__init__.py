"""One gRPC call: its request as it comes, its messages' framing and compression, and its responses."""
