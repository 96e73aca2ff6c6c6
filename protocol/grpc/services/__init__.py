"""The gRPC services and their methods: inference, health, reflection, and control of repositories and requests."""
