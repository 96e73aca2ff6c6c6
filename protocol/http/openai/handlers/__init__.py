"""Handlers of the OpenAI interface's routes, one module for each kind."""
