"""Command of an edge process: `python -m trioton.edge_processes <number> <two descriptors>`, started by the core's."""

from trioton.edge_processes.program import main

if __name__ == "__main__":
    main()
