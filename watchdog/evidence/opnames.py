"""One spelling for each operation, whatever torch version, backend or log wrote it."""

from __future__ import annotations

import re
from functools import lru_cache

P2P = frozenset({"send", "recv", "send_recv"})

_SAME: dict[str, str] = {
    "allreduce": "all_reduce",
    "allreducesparse": "all_reduce_sparse",
    "allreducecoalesced": "all_reduce_coalesced",
    "allgather": "all_gather",
    "allgatherbase": "all_gather_base",
    "allgatherintotensor": "all_gather_base",
    "allgathersingle": "all_gather_base",
    "allgatherv": "all_gather",
    "allgathercoalesced": "all_gather_coalesced",
    "allgatherintotensorcoalesced": "all_gather_into_tensor_coalesced",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter_base",
    "reducescattertensor": "reduce_scatter_base",
    "reducescattersingle": "reduce_scatter_base",
    "reducescattertensorcoalesced": "reduce_scatter_tensor_coalesced",
    "alltoall": "all_to_all",
    "alltoallbase": "all_to_all_base",
    "alltoallsingle": "all_to_all_base",
    "alltoallv": "all_to_all",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "broadcastoop": "broadcast",
    "reduce": "reduce",
    "reduceoop": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "monitoredbarrier": "monitored_barrier",
    "send": "send",
    "recv": "recv",
    "receive": "recv",
    "recvanysource": "recv",
    "isend": "send",
    "irecv": "recv",
    "sendrecv": "send_recv",
    "coalesced": "coalesced",
}

_PEER = re.compile(r"^(?P<a>\d{1,9})(?P<way>->|<-)(?P<b>\d{1,9})$")


@lru_cache(maxsize=4096)
def normal_op(name: str) -> str:
    """Normalise an operation name; an unknown one keeps its own words in snake case.

    >>> [normal_op(n) for n in ("ALLREDUCE", "nccl2:all_reduce", "_ALLGATHER_BASE", "ncclReduce")]
    ['all_reduce', 'all_reduce', 'all_gather_base', 'reduce']
    """
    text = name.strip()
    if ":" in text:
        text = text.split(":", 1)[1]
    text = text.split(" ", 1)[0][:80]
    if text.startswith("nccl") and text[4:5].isupper():
        text = text[4:]
    key = re.sub(r"[^a-z0-9]", "", text.lower())
    if key in _SAME:
        return _SAME[key]
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text).lower()
    return re.sub(r"[^a-z0-9]+", "_", snake).strip("_")


@lru_cache(maxsize=65536)
def split_profiling_name(name: str) -> tuple[str, str, tuple[int, int] | None]:
    """Split ``nccl:recv 1<-2`` into backend, op and (src, dst) in group ranks.

    >>> split_profiling_name("nccl:recv 1<-2")
    ('nccl', 'recv', (2, 1))
    """
    backend, colon, rest = name.partition(":")
    if not colon:
        backend, rest = "", name
    words = rest.split()
    peer = None
    if len(words) > 1 and (match := _PEER.match(words[1])):
        left, right = int(match["a"]), int(match["b"])
        peer = (left, right) if match["way"] == "->" else (right, left)
    return backend.lower()[:40], normal_op(words[0] if words else ""), peer
