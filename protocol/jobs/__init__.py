"""Jobs: requests that a server keeps until they are answered, whatever becomes of their client or of the server."""
