"""Codecs of gRPC messages: protobuf to requests and back, without copies of tensors."""
