"""Codecs of gRPC messages: protobuf to the server's requests and back, without a copy of tensors."""
