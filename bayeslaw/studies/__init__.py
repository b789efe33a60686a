"""Many refits of simulated or real cases, on this machine or on Dask.

May import ``design`` and below.
"""
