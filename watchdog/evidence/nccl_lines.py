"""Lines that NCCL itself writes (NCCL_DEBUG), versions 2.18 to 2.32, worth an event.

Kinds are ``nccl-log.<name>``. Every event has the fields pid, dev and level; the pid tells the
rank once a line of the same process has said it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PREFIX = re.compile(
    r"(?:^|[\s\]|])(?P<host>[^\s:\[\]|]{1,255}):(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) "
    r"(?:\[(?P<dev>-?\d+)\] )?(?:(?P<ms>\d+\.\d+) )?"
    r"(?:(?P<src>[\w./+<>-]+):(?P<line>\d+) (?:\((?P<func>[^)]*)\) )?)?"
    r"NCCL (?P<level>WARN|ATTN|INFO|CALL|TRACE|DIAG) (?P<msg>.*)$"
)
STAMP = re.compile(r"\[(\d{4}-\d\d-\d\d[ _T]\d\d:\d\d:\d\d)")


@dataclass(frozen=True, slots=True)
class NcclPattern:
    """One kind of NCCL line. ``once``: only the first of each distinct text of a process."""

    name: str
    literal: str
    regex: re.Pattern[str]
    once: bool = False


def _n(name: str, literal: str, regex: str, once: bool = False) -> NcclPattern:
    return NcclPattern(name, literal, re.compile(regex), once)


NCCL_PATTERNS: tuple[NcclPattern, ...] = (
    _n("version", "NCCL version ",
       r"NCCL version (?P<version>\d+\.\d+\.\d+\w*)\+cuda(?P<cuda>[\d.]+)", True),
    _n("init-start", "Init START",
       r"comm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d+) nranks (?P<nranks>\d+) cudaDev "
       r"(?P<cuda_dev>\d+).* - Init START"),
    _n("init-complete", "Init COMPLETE",
       r"comm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d+) nranks (?P<nranks>\d+) cudaDev "
       r"(?P<cuda_dev>\d+)(?: nvmlDev (?P<nvml>\d+))? busId (?P<bus>[0-9a-f]+).*Init COMPLETE"),
    _n("destroy", " - ",
       r"comm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d+) n[rR]anks (?P<nranks>\d+) cudaDev "
       r"(?P<cuda_dev>\d+) busId (?P<bus>[0-9a-f]+) - (?P<what>Destroy|Abort|Revoke) "
       r"(?P<state>START|COMPLETE)"),
    _n("call", ": opCount ",
       r"^(?P<op>[A-Z]\w{2,30}): opCount (?P<opcount>[0-9a-f]+) sendbuff \S+ recvbuff "
       r"(?:\S+|\(nil\)) (?:acc \S+ )?count (?P<elements>\d+) datatype (?P<datatype>\d+) op \d+ "
       r"root (?P<root>-?\d+) comm (?P<comm>0x[0-9a-f]+) \[nranks=(?P<nranks>\d+)\]"),
    _n("topology", "nNodes ",
       r"comm (?P<comm>0x[0-9a-f]+) rank (?P<rank>\d+) nRanks (?P<nranks>\d+) nNodes "
       r"(?P<nodes>\d+) localRanks (?P<local_ranks>\d+) localRank (?P<local_rank>\d+)"),
    _n("env", "set by environment to",
       r"(?P<name>NCCL_\w+) set by environment to (?P<value>.*?)\.?$", True),
    _n("bootstrap-interface", "Bootstrap", r"Bootstrap ?: Using ?(?P<interface>.+)$", True),
    _n("using-network", "Using network", r"Using network (?P<network>\S+)", True),
    _n("net-devices", "NET/", r"NET/(?P<net>IB|Socket) : Using(?P<devices>.*)$", True),
    _n("no-device", "No device found", r"NET/IB : No device found", True),
    _n("net-plugin", "NET plugin",
       r"(?P<what>Initialized|Assigned|Failed to initialize) NET plugin (?P<plugin>\S+)", True),
    _n("plugin-missing", "Could not find: lib", r"Could not find: (?P<library>lib\S+)", True),
    _n("transport", " via ",
       r"\] (?:\[(?:send|receive)\] )?via (?P<transport>(?:P2P|SHM|NET|COLLNET)/[A-Za-z][\w ]*)"
       r".*?(?P<gdr>/GDRDMA)?", True),
    _n("gdr", "GPU Direct RDMA", r"GPU Direct RDMA (?P<state>Enabled|Disabled)", True),
    _n("nvls", "NVLS", r"NVLS multicast support is (?P<state>available|not available)", True),
    _n("init-timings", "Init timings",
       r"Init timings.*?rank (?P<rank>\d+) nranks (?P<nranks>\d+) total (?P<total_s>[\d.]+)"),
    _n("ras-listening", "RAS client listening", r"RAS client listening socket at (?P<addr>\S+)"),
    _n("ras-not-listening", "RAS failed to establish",
       r"RAS failed to establish a client listening socket at (?P<addr>\S+)"),
    # ---- failures
    _n("socket-connect-failed", "onnect",
       r"connect(?: timeout :|ion)? ?(?:to (?P<peer>[\w.:%\[\]-]+<\d+>)(?:,[^:]*)?)?"
       r"(?: returned|(?: failed)? ?(?:with error|:)) ?(?P<why>Network is unreachable|"
       r"No route to host|Connection refused|Connection timed out|Host is down|[A-Z][\w ]+?)"
       r"(?:$|,| \()"),
    _n("socket-connect-failed", "onnect to ",
       r"[cC]onnect to (?P<peer>\S+) failed ?: ?(?P<why>.+)"),
    _n("unreachable", "is unreachable", r"(?P<why>Network is unreachable|No route to host)"),
    _n("socket-connect-retry", "retrying (",
       r"connect to (?P<peer>\S+) returned (?P<why>.+), retrying \((?P<try>\d+)/(?P<of>\d+)\)"),
    _n("socket-closed", "Connection closed by remote peer",
       r"Connection closed by remote peer (?P<peer>\S+)"),
    _n("socket-error", " failed : ",
       r"Call to (?:(?P<dir>recv from|send to) )?(?P<peer>\S+) failed : (?P<why>.+)"),
    _n("socket-truncated", "message truncated",
       r"peer (?P<peer>\S+) message truncated : receiving (?P<got>\d+) bytes instead of "
       r"(?P<want>\d+)"),
    _n("bootstrap-truncated", "Message truncated",
       r"Message truncated : received (?P<got>\d+) bytes instead of (?P<want>\d+)"),
    _n("bootstrap-mismatch", "Bootstrap Root",
       r"Bootstrap Root : (?P<why>mismatch in (?:rank count|info) from procs.*|rank \d+ of \d+ "
       r"ranks has already checked in|localId.*)"),
    _n("no-interface", "nterface",
       r"(?P<why>no socket interface found|no interface found|No IP interface found|No interface "
       r"found in the same subnet|No usable listening interface found)"),
    _n("ib-completion-error", "Got completion",
       r"NET/IB(?:/GIN)? ?: Got completion from peer (?P<peer>\S+) with (?:error |status=)"
       r"(?:(?P<status_name>\w+)\()?(?P<status>\d+)\)?,? opcode[= ](?:(?P<opcode_name>\w+)\()?"
       r"(?P<opcode>\d+)\)?,? ?(?:(?:reqSize=|len[= ])(?P<len>\d+),? ?)?vendor[_ ]err[= ]?"
       r"(?P<vendor_error>\d+)(?:.*? hca (?P<hca>\S+))?"),
    _n("ib-completion-error", "Got completion",
       r"NET/IB : Got completion with error (?P<status>\d+), opcode (?P<opcode>\d+), len "
       r"(?P<len>\d+), vendor err (?P<vendor_error>\d+)"),
    _n("ib-async-event", "async",
       r"NET/IB : (?:(?P<device>\S+?):(?P<port>\d+) )?(?:Got (?:non-fatal )?async (?:error )?"
       r"event ?: |async fatal event.*?: )(?P<event>.+?)(?:\(\d+\))?$"),
    _n("ib-gid-changed", "GID table changed", r"(?P<device>\S+?):(?P<port>\d+) GID table changed"),
    _n("ib-fatal", "encountered a fatal error", r"fatal error \(detected in (?P<function>\w+)\)"),
    _n("ib-mismatch", "NET/IB : req",
       r"peer (?P<peer>\S+) (?P<why>collective mismatch error|posted incorrect receive info)"),
    _n("ibv-failed", "ibv_", r"Call to (?P<call>ibv_\w+)(?:\(\))? (?:failed|returned)"
       r"(?: with(?: error)?)? ?(?P<why>.*)"),
    _n("ofi-error", "NET/OFI", r"NET/OFI (?P<why>.*(?:error|rror|fail|not find|unreach).*)"),
    _n("version-mismatch", "ismatch",
       r"(?P<why>Mismatched NCCL version detected|NCCL version mismatch with remote peer)"),
    _n("duplicate-gpu", "Duplicate GPU",
       r"Duplicate GPU detected : rank (?P<a>\d+) and rank (?P<b>\d+) both on CUDA device "
       r"(?P<bus>\w+)"),
    _n("cuda-failure", "uda failure",
       r"(?:HW )?Cuda failure (?:(?P<number>\d+) )?'(?P<error>[^']*)'"),
    _n("shm-failed", "/dev/shm",
       r"(?P<why>failed to (?:extend|create|open)|Could not map|Error while "
       r"(?:creating|attaching)).*?(?P<path>/dev/shm\S*).*?(?:error: (?P<error>.*))?$"),
    _n("too-many-files", "Too many open files", r"Too many open files"),
    _n("proxy-recv-failed", "Socket recv failed while polling",
       r"Socket recv failed while polling"),
    _n("no-transport", "No transport found",
       r"No transport found for rank (?P<a>\d+)\[\w+\] -> rank (?P<b>\d+)"),
    _n("nvls-failed", "NVLink SHARP", r"Failed to bind NVLink SHARP.*?CUDA error (?P<error>\d+)"),
    _n("mnnvl-failed", "MNNVL (cliqueSize",
       r"MNNVL \(cliqueSize (?P<size>\d+)\) is available but not (?:working|supported)"),
    _n("memory-failed", "Failed to ", r"Failed to (?:CUDA (?:malloc|calloc|host alloc)|malloc)"),
    _n("progress-thread-died", " Thread]",
       r"(?P<src>\S+):(?P<line>\d+) -> (?P<code>\d+) \[(?:Progress|Proxy) Thread\]"),
    _n("call-failed", " -> ",
       r"^(?P<src>[\w./]+\.(?:cc|h|cu)):(?P<line>\d+) -> (?P<code>\d+)(?: \[Async thread\])?$"),
    _n("async-error", "ncclCommSetAsyncError",
       r"error comm (?P<comm>\S+) sets state (?P<state>\d+)"),
    _n("hint", "HINT: ", r"HINT: (?P<hint>.+)", True),
)  # fmt: skip

NCCL_KINDS: dict[str, str] = {
    **{f"nccl-log.{p.name}": "NCCL: " + p.literal.strip() for p in NCCL_PATTERNS},
    "nccl-log.warn": "any other WARN line of NCCL: message, src",
    "nccl-log.proxy-active": "operations that NCCL's proxy still drives: ops, kinds, peers, "
    "channels, states (I init, G waits for the GPU, S sending, R receiving, F flushing, D done), "
    "opcounts",
    "nccl-log.proxy-idle": "a proxy dump without operations",
}

PROXY_OP = re.compile(
    r"^\[\d+-\d+\|(?P<opcount>-?\d+)\| (?P<kind>Send|Recv|Coll)(?P<subs>(?: -?\d+[A-Z ]?/-?\d+)*)\]"
)
PROXY_SUB = re.compile(r"(?P<peer>-?\d+)(?P<state>[A-Z ]?)/(?P<channel>-?\d+)")
