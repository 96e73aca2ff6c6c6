"""Commands for people who put repositories together: `trioton config`, `trioton doctor`, `trioton repo`.

They go the way of a server up to where it would load a model (`prepared`), and serve nothing.
"""
