"""The batches of a server: what reads their input, follows their jobs, and writes their files."""
