"""What a `model.py` runs in: interpreter, variables, directory, packed environments, and its own modules."""
