"""As in torch: the names of distributed_c10d."""

from .distributed_c10d import destroy_process_group, init_process_group

__all__ = ["destroy_process_group", "init_process_group"]
