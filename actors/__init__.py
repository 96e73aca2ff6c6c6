"""The actors, the messages between them, and the policies that they consult."""
