"""The metrics of a server: what is collected at a scrape, and how it is written."""
