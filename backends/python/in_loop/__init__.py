"""`ISOLATION: in_loop`: models whose `execute` is called in the server's event loop."""
