"""The OpenAI interface: chat, completions, embeddings, models and tokens, for any model with text in and text out.

body -> [codec] -> [prompts] -> core.infer_stream -> [codec] -> JSON, or server-sent events
"""
