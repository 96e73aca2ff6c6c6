"""Anthropic's Messages API, for any model with text in and text out: the same chats as OpenAI's, in other words.

body -> [codec.chats] -> openai.chats -> core.infer_stream -> [codec.blocks] -> JSON, or server-sent events
"""
