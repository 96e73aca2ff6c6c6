"""Business logic scripting (BLS): calls from a running model to the server."""
