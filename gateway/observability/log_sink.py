"""Log sink: lines are written at once where that cannot block, else by a thread behind a bounded queue.

    loop, threads ─► a pipe with room, a file: written
                       └─► queue, bounded in bytes ─► thread: write  (a full pipe holds the thread only)
                             └─ full: dropped, counted, and reported before the next line written

A slow reader of the pipe, or a stalled disk, must lose log lines and never delay requests. The standard
library's `QueueHandler` and `QueueListener` bound records instead of bytes, take a thread for each line, and
their `stop` waits for a blocked reader without a limit.
"""

import os
import select
import stat
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

MAX_QUEUED_BYTES = 8 << 20
"""Limit on queued bytes, some ten thousand lines: a reader may lag by seconds."""
MAX_WRITE_BYTES = 64 << 10
"""Bytes per write call: the capacity of a pipe."""
CLOSE_S = 2.0

Notice = Callable[[int], bytes]


def plain_notice(num: int) -> bytes:
    return b"%d log lines dropped here: the reader was too slow\n" % num


class DirectWriter:
    """Writes a whole line at once, or nothing. A pipe is opened a second time, because O_NONBLOCK applies to
    every process that shares the same open file description."""

    def __init__(self, file: int) -> None:
        self._file: int | None = None
        self._own: int | None = None
        try:
            mode = os.fstat(file).st_mode
            if stat.S_ISFIFO(mode):
                self._own = os.open(f"/proc/self/fd/{file}", os.O_WRONLY | os.O_NONBLOCK)
                self._file = self._own
            elif stat.S_ISREG(mode):
                self._file = file
        except OSError:  # not Linux, or another user's pipe
            pass

    def write(self, line: bytes) -> bool:
        """Write the line; False if that would block or the line is longer than a pipe writes atomically."""
        if self._file is None or len(line) > select.PIPE_BUF:
            return False
        try:
            return os.write(self._file, line) == len(line)
        except OSError:  # the pipe is full: this line goes by the queue
            return False

    def close(self) -> None:
        self._file = None
        if self._own is not None:
            os.close(self._own)
            self._own = None


class LogSink:
    """Writes whole lines to a file from any thread. `notice` makes the line that reports dropped lines."""

    def __init__(
        self, file: int, *, notice: Notice = plain_notice, max_queued_bytes: int = MAX_QUEUED_BYTES
    ) -> None:
        self.num_dropped = 0
        self._file = file
        self._notice = notice
        self._max_queued_bytes = max_queued_bytes
        self._num_queued_bytes = self._num_noticed = 0
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._direct = DirectWriter(file)

    def __repr__(self) -> str:
        return f"LogSink({self._num_queued_bytes} bytes queued, {self.num_dropped} lines dropped)"

    def write(self, line: bytes) -> None:
        """Write or queue a line, without waiting for the reader."""
        with self._lock:
            if not self._num_queued_bytes and self._direct.write(line):
                return
            if self._is_closed or self._num_queued_bytes + len(line) > self._max_queued_bytes:
                self.num_dropped += 1
                return
            self._num_queued_bytes += len(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
                self._thread.start()
        self._queue.put(line)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Write the queued lines, as far as the reader accepts them within the timeout."""
        with self._lock:
            self._is_closed = True
            self._direct.close()
            thread = self._thread
        if thread is not None:
            self._queue.put(None)
            thread.join(timeout_s)

    def _write_all(self) -> None:
        is_open = True
        while is_open:
            lines = self._take()
            is_open = lines[-1] is not None
            full = [line for line in lines if line is not None]
            data = b"".join(full)
            if missing := self.num_dropped - self._num_noticed:
                self._num_noticed += missing
                data = self._notice(missing) + data
            is_written = self._write(data)
            with self._lock:
                self._num_queued_bytes -= sum(map(len, full))
                if not is_written:
                    self.num_dropped += len(full)

    def _take(self) -> list[bytes | None]:
        """The next queued line and those behind it, up to MAX_WRITE_BYTES; None marks the end."""
        lines = [self._queue.get()]
        num_bytes = 0
        while (line := lines[-1]) is not None and (num_bytes := num_bytes + len(line)) < MAX_WRITE_BYTES:
            try:
                lines.append(self._queue.get_nowait())
            except Empty:
                break
        return lines

    def _write(self, data: bytes) -> bool:
        """Write all data, however long that takes; False if the file raises an error."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._file, view) :]
            except BlockingIOError:  # another process set O_NONBLOCK on the shared pipe
                select.select([], [self._file], [])
            except OSError:
                return False
        return True
