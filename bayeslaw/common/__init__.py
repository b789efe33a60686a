"""Errors, defaults, types of arrays, files, number formats and progress bars.

Imports nothing else of the package.
"""
