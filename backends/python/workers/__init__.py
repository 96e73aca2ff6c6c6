"""Worker processes and threads: started, forked from templates, watched, and ended."""
