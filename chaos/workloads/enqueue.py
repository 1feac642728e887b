"""Time what one collective costs its caller: tight loops of tiny asynchronous all_reduces.

Rank 0 prints one JSON line: percentiles of the time from the call until it returns, in
nanoseconds, and the time of a whole call-and-wait. A low percentile is what the code costs;
higher ones are what the machine did meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import torch
import torch.distributed as dist


def percentile(ordered: list[int], share: float) -> int:
    """The value below which ``share`` of the sorted list lies."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="gloo", choices=["gloo", "nccl"])
    parser.add_argument("--loops", type=int, default=4000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(options.backend)
    device = torch.device("cpu")
    if options.backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    tensor = torch.ones(1, device=device)
    for _ in range(200):
        dist.all_reduce(tensor)
    enqueue, whole = [], []
    for _ in range(options.loops):
        begin = time.perf_counter_ns()
        work = dist.all_reduce(tensor, async_op=True)
        returned = time.perf_counter_ns()
        work.wait()
        if options.backend == "nccl":
            torch.cuda.synchronize()
        whole.append(time.perf_counter_ns() - begin)
        enqueue.append(returned - begin)
    enqueue.sort()
    whole.sort()
    if dist.get_rank() == 0:
        found = {
            f"{name}_p{int(share * 100)}": percentile(values, share)
            for name, values in (("enqueue", enqueue), ("whole", whole))
            for share in (0.05, 0.1, 0.5)
        }
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
