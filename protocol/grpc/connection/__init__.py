"""One gRPC connection: HTTP/2 frames in and out, its calls, and the tasks that run them."""
