"""Block devices and files: what they are, opening them alone, and reading and writing them off the loop.

``opening.open_device`` gives a ``file_device.FileDevice``; everything above knows only
``interface.BlockDevice``.
"""
