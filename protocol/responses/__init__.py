"""What is kept of the answers of the Responses API, for clients to come back to, and those that run by themselves."""
