"""What language models cost and reach behind this server: `python -m tests.bench.language`."""
