"""Every byte layout on the device: encode and decode, no I/O.

=================  =====================================================================
module             structure
=================  =====================================================================
layout             how a structure is declared (fields, offsets, sizes)
checksums          CRC32C, CRC32C of many rows at once, keyed sums and digests
geometry           where everything lies, and how a device is divided
superblock         who the device is
row                a slot's line in the slot table
page               a block of rows
slab_header        which class and generation a slab has
record             what lies in a slot: header and payload
journal_block      a block of the journal
catalogue          what is not a row, as records
checkpoint_copy    header, directory and catalogue blocks of a checkpoint copy
=================  =====================================================================
"""
