"""Jobs: the stores that keep them, and the actor that runs them."""
