"""The vocabulary that flows through the server, and the two edges that speak it on the wire."""
