"""The life cycle of models: found in a repository, loaded, watched, kept within memory, exchanged and unloaded."""
