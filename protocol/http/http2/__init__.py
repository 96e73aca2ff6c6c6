"""REST over HTTP/2: connections, their streams and exchanges, and connections upgraded from HTTP/1."""
