"""Penstock measured beside other tools, on the same data, in one run. `make bench`.

Nothing here is imported by Penstock. A figure of one run on one machine is no result: the ratios
between sides of the same run are.
"""
