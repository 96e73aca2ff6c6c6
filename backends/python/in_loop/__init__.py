"""Models with `ISOLATION: in_loop`, called in the server's own event loop."""
