"""Several hosts on one machine: network namespaces joined by veth pairs and a bridge for each rail.

A bed is held by processes only. Its first process is the init of a PID namespace: when that ends,
however it ends, the kernel kills whatever ran on the hosts, and the namespaces go with it. Nothing
is written below /run/netns, no interface appears on the machine, nothing has to be cleaned up.
"""

from __future__ import annotations

from fabwatch.chaos.testbed.control import Bed, BedError, open_bed
from fabwatch.chaos.testbed.namespaces import why_not
from fabwatch.chaos.testbed.spec import Host, Spec

__all__ = ["Bed", "BedError", "Host", "Spec", "open_bed", "why_not"]
