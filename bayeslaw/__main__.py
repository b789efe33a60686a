"""``python -m bayeslaw`` is the command line."""

from bayeslaw.cli import main

main()
