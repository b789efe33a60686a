"""Errors, defaults, types of arrays, registries, content hashes, files, number formats, progress.

Imports nothing else of the package.
"""
