"""OpenAI's files and batches: requests that are uploaded as a file, run as a job, and answered by files."""
