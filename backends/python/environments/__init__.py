"""The execution environment of a `model.py`: interpreter, variables, directory, packed environments, own modules."""
