"""The OpenAI interface: chat, completions, embeddings, scores, models and tokens, for any model with text.

body -> [codec] -> [prompts] -> core.infer_stream -> [codec] -> JSON, or server-sent events
"""
