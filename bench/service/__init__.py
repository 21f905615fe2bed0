"""What the whole service can do, side by side with the device and with other stores, in one run.

``python -m bench.service`` starts the daemon as a user would, starts the others on the same disk, and drives all of
them with one load generator. Contenders of a series take turns, and what counts are medians of ratios.
"""
