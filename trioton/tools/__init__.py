"""Command-line tools for model repositories: `trioton config`, `trioton doctor`, `trioton repo`.

They do what a server does up to where it would load a model (`prepared`), and serve nothing.
"""
