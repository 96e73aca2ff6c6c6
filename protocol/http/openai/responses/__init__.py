"""OpenAI's Responses API: chats of items, whose answers are items, too.

body -> [chats] -> openai.chats -> core.infer_stream -> [output] -> JSON, or server-sent events
"""
