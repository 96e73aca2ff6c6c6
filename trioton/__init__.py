"""What a person meets: the command line, the settings, the in-process server."""
