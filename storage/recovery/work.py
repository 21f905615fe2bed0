"""One recovery under way: what its steps share."""

from __future__ import annotations

from storage.device.interface import BlockDevice
from storage.format.superblock import Superblock
from storage.index import Index
from storage.recovery.pages import BadLine
from storage.recovery.reading import BlockReader
from storage.recovery.replay import CatalogueState
from storage.recovery.report import RecoveryProgress, RecoveryReport


class RecoveryWork:
    """``bad`` are the lines that can't be taken as they stand, so far."""

    def __init__(
        self, device: BlockDevice, reader: BlockReader, superblock: Superblock, progress: RecoveryProgress
    ) -> None:
        self.device = device
        self.reader = reader
        self.superblock = superblock
        self.geometry = superblock.geometry
        self.progress = progress
        self.report = RecoveryReport()
        self.index = Index(superblock.geometry, superblock.uuid)
        self.catalogue = CatalogueState()
        self.bad: list[BadLine] = []
