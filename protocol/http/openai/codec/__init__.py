"""Codecs of the OpenAI interface: JSON bodies, tensors of text models, answers and chunks. Pure."""
