"""Batches: files with a request on each line, as OpenAI's API has them, that run as jobs and end in files."""
