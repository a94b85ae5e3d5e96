"""Of what several processes do, each thing is done once, and none is forgotten with a process that dies."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from glabench.claims import Claims


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is there until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def claim_of(folder: Path, thing: str, pid: int) -> Path:
    """The thing as that process has claimed it."""
    with Claims(folder).take(thing):
        (path,) = [one for one in folder.iterdir() if one.suffix != ".done" and one.read_text()]
    path.with_name(f"{path.name}.done").unlink()
    path.write_text(str(pid))
    return path


def test_without_a_folder_everything_is_ours() -> None:
    claims = Claims()
    for _ in range(2):
        with claims.take("a") as ours:
            assert ours
    claims.wait()


def test_each_thing_is_taken_once_however_many_want_it(tmp_path: Path) -> None:
    taken: Counter[str] = Counter()
    ended: list[int] = []
    lock, things = threading.Lock(), [f"kernel {i}" for i in range(40)]

    def worker() -> None:
        claims = Claims(tmp_path)
        for thing in things:
            with claims.take(thing) as ours:
                if ours:
                    with lock:
                        taken[thing] += 1
        claims.wait()
        ended.append(len(list(tmp_path.glob("*.done"))))

    threads = [threading.Thread(target=worker) for _ in range(6)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert ended == [len(things)] * len(threads)
    assert taken == dict.fromkeys(things, 1)


def test_what_fails_counts_as_done(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not compile"), Claims(tmp_path).take("a"):
        raise ValueError("does not compile")
    claims = Claims(tmp_path)
    with claims.take("a") as ours:
        assert not ours
    claims.wait()  # and is not waited for


def test_a_claim_is_waited_for_while_who_has_it_is_there(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    path, claims = claim_of(tmp_path, "a", other.pid), Claims(tmp_path)
    with claims.take("a") as ours:
        assert not ours
    helper = Claims(tmp_path, helps=True)
    with helper.take("a"):
        helper.wait()  # at once: it is others' concern
    waiting = threading.Thread(target=claims.wait)
    waiting.start()
    time.sleep(0.2)
    assert waiting.is_alive()
    path.with_name(f"{path.name}.done").touch()
    waiting.join(10)
    assert not waiting.is_alive()


def test_the_claim_of_a_process_that_is_gone_is_taken_over(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    claim_of(tmp_path, "a", other.pid)
    claims = Claims(tmp_path)
    with claims.take("a") as ours:
        assert not ours
    other.kill()
    other.wait()
    claims.wait()  # nobody does it any more
    with Claims(tmp_path).take("a") as ours:
        assert ours


def test_all_is_made_in_order_and_first_what_nobody_has_claimed(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    path, made = claim_of(tmp_path, "b", other.pid), list[int]()

    def make(thing: int) -> int:
        made.append(thing)
        if thing == 3:  # meanwhile the other one is done
            path.with_name(f"{path.name}.done").touch()
        return 10 * thing

    things = {"a": 1, "b": 2, "c": 3}
    assert Claims(tmp_path).made(things, make) == {"a": 10, "b": 20, "c": 30}
    assert made == [1, 3, 2]
    assert Claims(tmp_path, helps=True).made(things, make) == {}
