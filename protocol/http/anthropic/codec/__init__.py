"""Codecs of the Messages API: JSON bodies to chats, and what a chat's answer says to content blocks. Pure."""
