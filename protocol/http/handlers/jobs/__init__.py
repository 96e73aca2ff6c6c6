"""Handlers of jobs: they are made, looked at, followed, cancelled and removed by the key that made them."""
