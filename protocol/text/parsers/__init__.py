"""Parsers of the output of language models: reasoning and tool calls, one module for each way to write them. Pure."""
