"""Programs of the steps, each in a process of its own: `python -m trioton.convert.programs <arguments.json>`.

A module here has `run(arguments)`, which answers the step's result; it may import any framework, and paths are relative
to the folder that it runs in.
"""
