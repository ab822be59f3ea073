"""Forms of multipart/form-data, byte for byte."""

KIND = b"multipart/form-data; boundary=xx"


def part(name: str, value: bytes, more: str = "") -> bytes:
    return f'--xx\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + b"--xx--\r\n"
