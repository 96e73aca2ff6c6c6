"""Outgoing HTTP: URLs that clients name, the hosts that the operator allows, and connections to what was judged."""
