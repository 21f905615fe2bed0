"""``python -m rawblockd``: the same as the script."""

from rawblockd.command_line import main

main()
