"""Where the response cache keeps its entries: the interface, the registry, and one module for each implementation."""
