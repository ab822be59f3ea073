"""Starts of the gateway that cost a fork, from a template process that has imported everything.

`install()` replaces `subprocess.Popen` in this process (asyncio uses it too). A command of the gateway
then goes to the template, which is this file run as a program. It forks twice: the second child gets the
caller's descriptors, environment and directory, and runs `kvgate/__main__.py` as `python -m kvgate`
does; the first child ends, which makes the second one a child of the test process. So waiting, signals
and exit codes are those of any child. Commands that ask for more than that, and all others, start as
usual.

A gateway of several processes starts them itself, and a demo its engines. Where its arguments ask for that,
it gets a template of its own before it runs, and `asyncio.create_subprocess_exec` is replaced there.
"""

import array
import asyncio
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

PYTHON = os.environ.get("GATEWAY_PYTHON", sys.executable)
PROGRAMS = ("kvgate", "engines.sim")
MODULES = (
    "uvloop",
    "gateway.app",
    "gateway.commands.serve",
    "gateway.commands.check_run",
    "gateway.processes.child",
    "engines.sim.cli",
)
PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36
TEMPLATE = "template"
"""Name of the process of a gateway's own template, in `/proc/PID/comm`."""
MAX_REQUEST_BYTES, MAX_FILES = 1 << 20, 64


class Template:
    """The process that forks, and the socket to it."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_REQUEST_BYTES)
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._settings = _settings_of_imports(os.environ)
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def launched(cls) -> "Template":
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        template = cls(ours)
        with theirs:
            command = [PYTHON, "-P", __file__, str(theirs.fileno())]
            template._process = _Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        return template

    @classmethod
    def forked(cls, unused: list[int]) -> "Template":
        """Template that is a child of this process, with what this has imported, without `unused` files."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if not os.fork():
            _call_process(TEMPLATE)
            for fd in (ours.detach(), *unused):
                os.close(fd)
            _serve(theirs)
            os._exit(0)
        theirs.close()
        return cls(ours)

    def takes(self, command: Any, environ: "os._Environ[str] | dict[str, str]") -> bool:
        """True if a gateway started this way would import the same as the template."""
        is_gateway = isinstance(command, list | tuple) and _program_at(command) > 0
        return is_gateway and _settings_of_imports(environ) == self._settings

    def start(
        self, command: list[str], files: dict[int, int], environ: dict[str, str], cwd: str, is_session: bool
    ) -> int:
        """Start a child of this process; `files` maps each of its descriptors to one here, and `is_session`
        gives it a session of its own."""
        request = {
            "argv": command,
            "environ": environ,
            "cwd": cwd,
            "files": list(files),
            "is_session": is_session,
        }
        fds = array.array("i", files.values())
        self._adopt(True)
        try:
            self._socket.sendmsg(
                [json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
            )
            answer = self._socket.recv(64)
        finally:
            self._adopt(False)
        if not answer:
            raise OSError("the template process of the gateway has ended")
        return int(answer)

    def close(self) -> None:
        self._socket.close()
        if self._process:
            self._process.wait()

    def _adopt(self, is_on: bool) -> None:
        """Make orphans below this process its children, or not."""
        if self._prctl(PR_SET_CHILD_SUBREAPER, int(is_on), 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")


def _program_at(command: Any) -> int:
    """Position of the module's name in `python -P -m kvgate`, with or without -P; 0 in other commands."""
    at = 3 if list(command[1:2]) == ["-P"] else 2
    if len(command) <= at or command[0] not in (PYTHON, os.path.abspath(PYTHON)):
        return 0
    return at if command[at - 1] == "-m" and command[at] in PROGRAMS else 0


def _settings_of_imports(environ: Any) -> dict[str, str]:
    """Variables that Python, its allocator or a library reads at the start or when it is imported."""
    return {name: environ[name] for name in environ if name.startswith(("PYTHON", "LD_", "HF_", "MALLOC_"))}


_Popen = subprocess.Popen
_template: Template | None = None


class PreloadedPopen(_Popen):  # type: ignore[type-arg]
    """`subprocess.Popen`, by the template where it is a plain start of the gateway."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, *rest: Any) -> None:
        pass_fds, cwd, env, _, _, shell, *pipes = rest[:12]
        restore_signals, *users, is_session, group = rest[12:]
        given = os.environ if env is None else env
        is_plain = not (executable or preexec_fn or shell) and close_fds and restore_signals
        is_plain = is_plain and all(value in (None, False, -1) for value in (*users, group))
        if not (is_plain and _template and _template.takes(args, given)):
            super()._execute_child(args, executable, preexec_fn, close_fds, *rest)  # type: ignore[misc]
            return
        stdin, _, _, stdout, _, stderr = pipes
        files = {0: stdin, 1: stdout, 2: stderr} | {int(fd): int(fd) for fd in pass_fds}
        files = {number: number if fd == -1 else fd for number, fd in files.items()}
        try:
            directory = os.fspath(cwd or os.getcwd())
            self.pid = _template.start(list(args), files, dict(given), directory, is_session)
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def install() -> None:
    """Replace `subprocess.Popen` in this process from now on."""
    global _template
    _template = Template.launched()
    subprocess.Popen = PreloadedPopen  # type: ignore[misc]


def uninstall() -> None:
    global _template
    subprocess.Popen = _Popen  # type: ignore[misc]
    if _template:
        _template.close()
    _template = None


# A gateway that starts processes ------------------------------------------------------------------


class ForkedChild:
    """Child of a gateway, with what that asks of an `asyncio.subprocess.Process`."""

    def __init__(self, process: "subprocess.Popen[bytes]", stdout: asyncio.StreamReader | None) -> None:
        self.pid, self.stdout = process.pid, stdout
        self.send_signal, self.kill = process.send_signal, process.kill
        self._process = process

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    async def wait(self) -> int:
        """Wait for the end of the process; returns its exit code, negative for a signal."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        if self.returncode is None:
            file = os.pidfd_open(self.pid)
            loop.add_reader(file, ended.set)
            try:
                await ended.wait()
            finally:
                loop.remove_reader(file)
                os.close(file)
        code = self.returncode
        assert code is not None
        return code


def _start_children_from(template: Template) -> None:
    """Have children of this process started by a template, where they are plain starts of the gateway."""
    global _template
    _template = template
    create = asyncio.create_subprocess_exec

    async def create_or_fork(*command: Any, **how: Any) -> Any:
        if not template.takes(command, os.environ):
            return await create(*command, **how)
        process = PreloadedPopen(command, **how)
        if process.stdout is None:
            return ForkedChild(process, None)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), process.stdout
        )
        return ForkedChild(process, reader)

    asyncio.create_subprocess_exec = create_or_fork  # type: ignore[assignment]


def _starts_processes(request: dict[str, Any]) -> bool:
    """True if the gateway may start processes, by its arguments and environment."""
    words = {*request["argv"], *request["environ"]}
    return (
        "demo" in words or "serve" in words and bool(words & {"--processes", "KVGATE_PROCESSES", "--config"})
    )


def _call_process(name: str) -> None:
    """Name this process, in `/proc/PID/comm`."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


# The template ------------------------------------------------------------------------------------


def _serve(requests: socket.socket) -> None:
    """Fork for each request, until the other end is closed; Ctrl-C is for the others of its group."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        data, ancillary, _, _ = requests.recvmsg(MAX_REQUEST_BYTES, socket.CMSG_SPACE(MAX_FILES * 4))
        if not data:
            return
        fds = array.array("i")
        for _, _, part in ancillary:
            fds.frombytes(part[: len(part) - len(part) % fds.itemsize])
        reading, writing = os.pipe()
        first = os.fork()
        if not first:
            second = os.fork()
            if not second:
                for fd in (reading, writing, requests.detach()):
                    os.close(fd)
                _prepare_and_run(json.loads(data), list(fds))
            os.write(writing, str(second).encode())
            os._exit(0)
        os.waitpid(first, 0)  # its child has another parent from now on
        requests.send(os.read(reading, 64))
        for fd in (reading, writing, *fds):
            os.close(fd)


def _prepare_and_run(request: dict[str, Any], fds: list[int]) -> NoReturn:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["is_session"]:
        os.setsid()
    _call_process("gateway")
    if _starts_processes(request):
        _start_children_from(Template.forked(unused=fds))
    _run(request, fds)


def _run(request: dict[str, Any], fds: list[int]) -> NoReturn:
    """Run `python -m` with these arguments; ends the process."""
    try:
        high = [os.dup2(fd, fd + 1000, inheritable=False) for fd in fds]
        for fd in fds:
            os.close(fd)
        for number, fd in zip(request["files"], high, strict=True):
            os.dup2(fd, number)
            os.close(fd)
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["environ"])
        program = _program_at(request["argv"])
        sys.argv = request["argv"][program:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else int(exc.code is not None)
        if isinstance(exc.code, str):
            print(exc.code, file=sys.stderr)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        code = 130
    except BaseException:  # noqa: BLE001 - printed, as the interpreter does
        traceback.print_exc()
        code = 1
    _end(code)


def _end(code: int) -> NoReturn:
    """End as the interpreter does: run exit handlers and flush buffers."""
    import atexit
    import threading

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    for module in MODULES:
        __import__(module)
    sys.path.append(str(Path(__file__).parent))  # alone: a wheel has no pytest
    shared_tokenizers = importlib.import_module("shared_tokenizers")
    sys.path.pop()
    shared_tokenizers.share()
    shared_tokenizers.warm()
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
