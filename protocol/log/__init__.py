"""What the server's log says of requests: their ids, the tags of a line, failures, and the access log."""
