"""What actors send to each other: messages, inboxes, and the slots in which replies are left."""
