"""The log of a server's process: its formats, the threads that write it, and its settings at run time."""
