"""Server-sent events of answers that are sent as they come."""
