"""The OpenAI interface of a real server, by raw bytes and by the clients that people use."""
