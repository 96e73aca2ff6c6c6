"""Chats: what `/v1/chat/completions`, responses and messages have in common."""
