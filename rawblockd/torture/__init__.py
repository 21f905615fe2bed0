"""The crash kit ``rawblockd torture``: a real daemon on a device of its own, killed, cut, flipped and failed in rounds.

===============  ===============================================================================================
module           what
===============  ===============================================================================================
values           values that say what they are
ledger           what clients were promised, and so what each key may hold
load             clients: mixed load over several connections
daemon           the daemon's process: start, kill, stop, its log
patience         signals that wait while a process is started
faulty_server    the same daemon on a device that fails now and then
verification     a restarted daemon held to the ledger
rounds           one round of each kind
runner           rounds until the time is over, and the verdict
===============  ===============================================================================================

What is done to a closed device is in ``storage.torture``.
"""
