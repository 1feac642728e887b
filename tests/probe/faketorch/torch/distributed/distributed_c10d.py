"""The state that torch keeps of process groups, in torch's own names."""

import torch._C._distributed_c10d  # noqa: F401


class ProcessGroup:
    group_desc = "default_pg"

    def __init__(self, rank, size):
        self._rank, self._size = rank, size

    def rank(self):
        return self._rank

    def size(self):
        return self._size


class _World:
    def __init__(self):
        self._default_pg = None
        self.pg_names = {}
        self.pg_group_ranks = {}
        self.pg_backend_config = {}

    @property
    def default_pg(self):
        return self._default_pg


_world = _World()


def init_process_group(rank, world_size):
    group = ProcessGroup(rank, world_size)
    _world.pg_names[group] = "0"
    _world.pg_group_ranks[group] = {i: i for i in range(world_size)}
    _world.pg_backend_config[group] = "cpu:gloo"
    _world._default_pg = group


def destroy_process_group():
    _world._default_pg = None
    for table in (_world.pg_names, _world.pg_group_ranks, _world.pg_backend_config):
        table.clear()
