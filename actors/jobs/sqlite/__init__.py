"""The job store that comes with the server: a SQLite database in a folder, and files beside it for what is large."""
