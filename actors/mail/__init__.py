"""Messages between actors, inboxes, and the slots for replies."""
