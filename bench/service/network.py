"""A network of the run's own: the loopback with cubic.

The congestion control BBR, where a machine has it as its default, paces even the loopback, and now and then waits for
a tail-loss probe. Whatever the run starts afterwards lives in a network namespace where the default is another.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

CLONE_NEWNET = 0x40000000
CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def enter_own_network() -> str:
    """Move this process into a new network namespace; says in plain words what became of it.

    Nothing else is reachable afterwards, so whatever has to be downloaded comes before.
    """
    if os.geteuid() != 0:
        return f"the machine's own loopback with {CONTROL.read_text().strip()}: a network namespace takes root"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        reason = os.strerror(ctypes.get_errno())
        return f"the machine's own loopback with {CONTROL.read_text().strip()}: no network namespace ({reason})"
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=10)
    try:
        CONTROL.write_text("cubic")
    except OSError:
        CONTROL.write_text("reno")  # every kernel has it
    return f"loopback of a network namespace of its own with {CONTROL.read_text().strip()}"


def loss_probes() -> int:
    """Tail-loss probes that TCP has sent in this namespace so far."""
    names: list[str] = []
    for line in Path("/proc/net/netstat").read_text().splitlines():
        kind, *fields = line.split()
        if kind != "TcpExt:":
            continue
        if not names:
            names = fields
        else:
            return int(dict(zip(names, fields, strict=True)).get("TCPLossProbes", "0"))
    return 0
