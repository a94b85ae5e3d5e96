"""Which groups can exchange messages by themselves (exchange.py), and the buffers that their ranks open to each other.

That is settled at the first message of a size, by all ranks together: each says where it runs, and they go on only
where all can. Otherwise `torch.distributed` gathers, as on several hosts, by gloo, and without access to peers' memory.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from ..launch import Launcher
from ..launch.record import Sort, record
from ..launch.run import ALIGNED
from ..ops.prepared import Ready
from .exchange import buffer_bytes, exchange_of, programs_of

LEAST, MOST = 2**20, 2**23  # bytes of messages that buffers are for; what is larger takes the wire's time by any way
PATIENCE = timedelta(minutes=10)  # where a group does not say its own
NAMESPACES = ("mnt", "pid")  # processes in others cannot hand memory to one another
FOLDERS = ("TMPDIR", "TMP", "TEMP", "TEMPDIR")  # the same for PyTorch's sockets

logger = logging.getLogger(__name__)
_known: weakref.WeakKeyDictionary[Any, dict[tuple[int, int], Exchange | None]] = weakref.WeakKeyDictionary()


class Exchange:
    """Gathers messages of up to so many blocks. addresses: of all ranks' buffers, zeroed, as this process has them;
    held: what must live as long. patience: ns that others may be late."""

    def __init__(
        self, rank: int, addresses: Sequence[int], programs: int, patience: int, device: torch.device, held: Any = None
    ) -> None:
        self.rank, self.patience, self.device, self._held = rank, patience, device, held
        self.buffers = torch.tensor(addresses, dtype=torch.int64, device=device)
        self.epochs = torch.zeros(programs, dtype=torch.int32, device=device)
        self._ready: dict[tuple[int, torch.dtype], Ready] = {}
        self._stream: torch.cuda.Stream | None = None  # of the last exchange

    def __call__(self, x: Tensor) -> Tensor:
        """[ranks, n] of x [n]."""
        if not x.is_contiguous() or x.data_ptr() % ALIGNED:
            x = x.clone(memory_format=torch.contiguous_format)
        key = x.numel(), x.dtype
        ready = self._ready.get(key)
        if ready is None:
            ready = self._ready[key] = self._prepared(x)
        if self.device.type == "cuda":
            self._follow()
        found: Tensor = ready((x, self.buffers, self.epochs))[0][0]
        return found

    def _prepared(self, x: Tensor) -> Ready:
        sorts = [Sort.of(one) for one in (x, self.buffers, self.epochs)]
        of, buffers, epochs = metas = [sort.on_meta() for sort in sorts]

        def host(launch: Launcher) -> tuple[Sequence[Tensor | None], Sequence[Tensor | None]]:
            found = of.new_empty(len(buffers), len(of))
            launch(exchange_of(of, buffers, epochs, found, self.rank, self.patience))
            return (found,), ()

        return Ready(record(host, metas, self.device), sorts, self.device)

    def _follow(self) -> None:
        """Exchanges are made one after another, whatever streams they are queued on. What a graph of the caller's
        holds comes when that is launched, and its order is the caller's."""
        raw = torch._C._cuda_getCurrentRawStream(self.device.index)
        if self._stream is not None and raw == self._stream.cuda_stream:
            return
        if torch.cuda.is_current_stream_capturing():
            return
        stream = torch.cuda.current_stream(self.device)
        if self._stream is not None:
            stream.wait_stream(self._stream)
        self._stream = stream


def exchange_for(group: Any, rank: int, ranks: int, x: Tensor) -> Exchange | None:
    """What gathers x [n] of all ranks, or None where `torch.distributed` has to. x is of one size on all ranks; of a
    new size they all wait for each other, and for their GPUs."""
    if not x.is_cuda or not 0 < x.nbytes <= MOST or ranks == 1:
        return None
    known = _known.get(group)
    if known is None:
        known = _known[group] = {}
    size = max(LEAST, 1 << (x.nbytes - 1).bit_length())
    key = x.get_device(), size
    if key not in known:
        if torch.cuda.is_current_stream_capturing():  # nothing can be settled now
            return None
        with torch.cuda.device(x.device):
            known[key] = _settled(group, rank, ranks, size, x.device)
    return known[key]


class Here(NamedTuple):
    """Where a rank runs: what has to be the same of all, or None where that cannot be told; its GPU's number in its
    process, and the GPU."""

    host: tuple[Any, ...] | None
    number: int
    gpu: str


def _settled(group: Any, rank: int, ranks: int, size: int, device: torch.device) -> Exchange | None:
    """Asked of all ranks together."""
    if "cuda:nccl" not in dist.get_backend_config(group) or torch.version.hip is not None:
        return None
    all_here = _told(group, ranks, here(device))
    buffer: Tensor | None = None
    programs = programs_of(size)
    if reach_each_other(all_here, rank):
        buffer = _tried(lambda: _zeros(buffer_bytes(ranks, programs), device))
    if not all(_told(group, ranks, buffer is not None)):
        return None
    assert buffer is not None
    opened = _tried(lambda: _opened(buffer, group))
    if not all(_told(group, ranks, opened is not None)):
        return None
    return Exchange(rank, opened.buffer_ptrs, programs, _patience(group, device), device, (buffer, opened))


def here(device: torch.device) -> Here:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
        spaces = [os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES]
        host = (boot, *spaces, *(os.environ.get(name) for name in FOLDERS))
    except OSError:
        host = None
    return Here(host, device.index, str(torch.cuda.get_device_properties(device).uuid))


def reach_each_other(all_here: Sequence[Here], rank: int) -> bool:
    """Whether this rank can have the others' memory: they are on its host, each with a GPU of its own, which the rank's
    GPU has access to."""
    mine = all_here[rank]
    if mine.host is None or any(one.host != mine.host for one in all_here):
        return False
    if len({one.gpu for one in all_here}) < len(all_here):
        return False
    others = [one.number for one in all_here if one.gpu != mine.gpu]
    seen = torch.cuda.device_count()
    return all(other < seen and torch.cuda.can_device_access_peer(mine.number, other) for other in others)


def _told(group: Any, ranks: int, mine: Any) -> list[Any]:
    """What all ranks say."""
    said: list[Any] = [None] * ranks
    dist.all_gather_object(said, mine, group=group)
    return said


def _tried(make: Callable[[], Any]) -> Any:
    """None where PyTorch says no, for whatever reason: there is another way."""
    try:
        return make()
    except (ImportError, AttributeError, TypeError, RuntimeError) as error:
        logger.debug("torch.distributed will gather: %s", error)
        return None


def _zeros(size: int, device: torch.device) -> Tensor:
    """Memory that can be opened to others, by itself: PyTorch's pool would have it share a block."""
    from torch._C._distributed_c10d import _SymmetricMemory
    from torch.distributed import _symmetric_memory as symmetric

    if symmetric.get_backend(device) != "CUDA":
        raise RuntimeError("memory of another kind, whose addresses are not known to mean anything in a kernel")
    buffer: Tensor = _SymmetricMemory.empty_strided_p2p((size,), (1,), torch.uint8, device)
    buffer.zero_()
    torch.cuda.synchronize(device)
    return buffer


def _opened(buffer: Tensor, group: Any) -> Any:
    """What knows all ranks' buffers. Not NVLink's multicast, which this has no use for, and not every host that has it
    can take."""
    from unittest.mock import patch  # here, as it takes a while

    from torch.distributed import _symmetric_memory as symmetric

    with patch.dict(os.environ, {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}):
        return symmetric.rendezvous(buffer, group)


def _patience(group: Any, device: torch.device) -> int:
    """The group's timeout in ns."""
    timeout = _tried(lambda: group._get_backend(device).options._timeout)
    return int((timeout if isinstance(timeout, timedelta) else PATIENCE).total_seconds() * 1e9)
