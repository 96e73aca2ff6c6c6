"""From a folder of files to typed model configurations: layout, parsing, validation, completion, version policies."""
