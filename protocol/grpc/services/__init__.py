"""The gRPC services and their methods: inference, health, reflection, and control of repository and requests."""
