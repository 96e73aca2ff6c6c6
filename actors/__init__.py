"""The actors, what they say to each other, and the plain policies that they consult."""
