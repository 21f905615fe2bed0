"""``rawblockd top``: a running daemon in a terminal, live. Only ``app`` and ``screen`` need textual."""
