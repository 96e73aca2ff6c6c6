"""The data of jobs: files of rows that are read, and files of results that are written, on disks and in buckets."""
