"""``python3 confine.py UNIT UID GID COMMAND…``: run a command under what a unit forbids. As root, by Debian's Python.

What systemd sets up is done again with the same calls, from the unit's own lines: user and user namespace,
capabilities, no new privileges, memory that is never writable and executable, the filter of system calls and address
families. The filter is loaded by libseccomp, which systemd uses too. Settings of the file system are left to the
caller; cgroups (DevicePolicy=) are not done.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_SET_MDWE = 24, 38, 65
MDWE_REFUSE_EXEC_GAIN = 1
CLONE_NEWUSER = 0x10000000
SCMP_ACT_ALLOW = 0x7FFF0000
SCMP_ACT_ERRNO = 0x00050000
SCMP_CMP_EQ = 4
EPERM, EAFNOSUPPORT = 1, 97
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}

libc = ctypes.CDLL(None, use_errno=True)


class Comparison(ctypes.Structure):
    """struct scmp_arg_cmp"""

    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


def lines(unit: str, name: str) -> list[str]:
    with open(unit, encoding="utf-8") as text:
        return [line.strip().partition("=")[2] for line in text if line.startswith(f"{name}=")]


def members(group: str) -> set[str]:
    """The system calls of one of systemd's groups."""
    listed = subprocess.run(["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True)
    names = [line.split("#")[0].strip() for line in listed.stdout.splitlines()[1:]]
    return {call for name in names if name for call in (members(name) if name.startswith("@") else {name})}


def allowed_calls(unit: str) -> set[str]:
    """As systemd.exec(5) reads the lines: the first makes it a list of what is allowed, ~ takes away."""
    allowed = members("@default")
    for line in lines(unit, "SystemCallFilter"):
        calls = {call for word in line.lstrip("~").split() for call in (members(word) if word[0] == "@" else {word})}
        allowed = allowed - calls if line.startswith("~") else allowed | calls
    return allowed


def check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def drop_privileges(uid: int, gid: int) -> None:
    os.setgroups([])
    enter_user_namespace(uid, gid)
    # In the namespace, where a new set of capabilities begins. Those above the kernel's last are refused.
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def enter_user_namespace(uid: int, gid: int) -> None:
    """With root and the own user in it, as PrivateUsers=yes does. The maps are written from outside."""
    ready, go = os.pipe(), os.pipe()
    target = os.getpid()
    if os.fork() == 0:
        os.read(ready[0], 1)
        for name, own in (("uid_map", uid), ("gid_map", gid)):
            with open(f"/proc/{target}/{name}", "w", encoding="ascii") as file:
                file.write(f"0 0 1\n{own} {own} 1\n")
        os.write(go[1], b"x")
        os._exit(0)
    check(libc.unshare(CLONE_NEWUSER), "unshare")
    os.write(ready[1], b"x")
    os.read(go[0], 1)
    os.wait()


def filter_calls(unit: str) -> None:
    seccomp = ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(seccomp.seccomp_init(SCMP_ACT_ERRNO | EPERM))
    for call in sorted(allowed_calls(unit)):
        number = seccomp.seccomp_syscall_resolve_name(call.encode())
        if number >= 0 and call != "socket":  # negative: of another architecture
            assert seccomp.seccomp_rule_add(context, SCMP_ACT_ALLOW, number, 0) == 0, call
    number = seccomp.seccomp_syscall_resolve_name(b"socket")
    for family in lines(unit, "RestrictAddressFamilies")[0].split():
        equal = Comparison(0, SCMP_CMP_EQ, FAMILIES[family], 0)
        assert seccomp.seccomp_rule_add_array(context, SCMP_ACT_ALLOW, number, 1, ctypes.byref(equal)) == 0
    assert seccomp.seccomp_load(context) == 0


def main() -> None:
    unit, uid, gid, *command = sys.argv[1:]
    for name in ("NoNewPrivileges", "MemoryDenyWriteExecute", "PrivateUsers"):
        assert lines(unit, name) == ["yes"], name
    assert lines(unit, "CapabilityBoundingSet") == [""]
    calls_known = allowed_calls(unit)
    assert "mount" not in calls_known
    drop_privileges(int(uid), int(gid))
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")
    filter_calls(unit)
    # Kernels before 6.3 have no such switch; there systemd filters mmap and mprotect instead.
    libc.prctl(PR_SET_MDWE, MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
