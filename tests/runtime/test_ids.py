import os

from gateway.runtime.ids import new_id


def test_ids_are_hex_of_the_given_length_and_never_repeat() -> None:
    ids = [new_id(12) for _ in range(2000)]
    assert len(set(ids)) == 2000
    assert all(len(each) == 24 and int(each, 16) >= 0 for each in ids)
    assert len(new_id()) == 32


def test_a_forked_process_has_its_own_ids() -> None:
    new_id()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, new_id().encode())
        os._exit(0)
    os.waitpid(pid, 0)
    theirs = os.read(read, 64).decode()
    os.close(read)
    os.close(write)
    assert theirs != new_id()
