"""What every part of the package may use: errors, defaults, files, formatting, progress bars.

Imports nothing else of the package.
"""
