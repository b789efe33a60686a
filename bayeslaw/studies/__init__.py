"""Studies: many refits of simulated or measured cases, on this machine or on a Dask cluster.

May import ``design`` and below.
"""
