"""Text of language models: tokenizers, chat templates, detokenizers, stop strings, parsers of tool calls. Pure."""
