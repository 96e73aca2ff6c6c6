"""`trioton convert`: converts a model to other formats, and puts the fastest into a repository that is proven equal.

Flow: a source → [plan] → steps, each a process → candidates → [gate] against a reference in float64 → [speed] on the
server's own backends → a repository entry. What is pure is apart from what runs: `plan`, `cases`, `gate` and `choice`
decide, `programs/` are the processes, `conversion` ties them together.
"""
