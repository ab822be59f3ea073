"""Connection that keeps its writes."""


class RecordedWire:
    """Connection that keeps its writes."""

    def __init__(self) -> None:
        self.is_draining = self.is_full = False
        self.writes: list[bytes] = []
        self.peername: object = None
        self.kept_alive: list[bool] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def answered(self, keep_alive: bool) -> None:
        self.kept_alive.append(keep_alive)

    def abort(self, *, with_reset: bool = False) -> None:
        self.writes.append(b"RESET" if with_reset else b"CUT")
