"""What every engine promises, tried on each that is installed, behind a real server with real clients."""
