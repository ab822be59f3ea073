"""Answers of engines that are full, byte for byte."""

VLLM_REQUESTS = (
    b'{"error":{"message":"The engine is currently busy and cannot accept new requests. Please try '
    b'again later or on a different instance.","type":"Service Unavailable","param":null,"code":503}}'
)
VLLM_TOKENS = (
    b'{"error":{"message":"The engine has reached its prefill token backlog limit. Please try '
    b'again later or on a different instance.","type":"Service Unavailable","param":null,"code":503}}'
)
SGLANG = (
    b'{"object":"error","message":"The request queue is full.","type":"HTTPStatus.SERVICE_UNAVAILABLE",'
    b'"param":null,"code":503}'
)
