"""Worker processes and threads: started, forked, watched and ended."""
