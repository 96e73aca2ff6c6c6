"""Business logic scripting (BLS): what a running model asks of the server."""
