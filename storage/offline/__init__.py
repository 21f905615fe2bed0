"""What can be learned of a device without a daemon. Nothing here writes, prints, or needs the device for itself.

=========  ===========================================================================
module     what
=========  ===========================================================================
opening    open a device for reading only, and identify it
info       who the device is and how it is divided
copies     the checkpoint copies and the journal, and how the copies differ
dump       every entry as a recovery would see it
check      everything verified, with a verdict
findings   kinds of damage and their counts
pages      pages of the copies, judged strictly
journal    the chain of the journal, judged strictly
records    headers and payloads of live entries
state      what a recovery would make of it: accounting, keys held twice, overlaps
=========  ===========================================================================
"""

from storage.offline.check import CheckReport, check
from storage.offline.copies import copies
from storage.offline.dump import dump
from storage.offline.info import info

__all__ = ["CheckReport", "check", "copies", "dump", "info"]
