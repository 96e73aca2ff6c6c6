"""Text of language models: tokenizers, chat templates, detokenizers, stop strings, tool-call and reasoning parsers. Pure."""
