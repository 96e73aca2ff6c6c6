"""The tests mirror the packages; `tests.generate` makes the code that comes from the `.proto` files."""
