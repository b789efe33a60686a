"""The README's picture: two larger bases forecast from smaller ones, with bands.

python benchmarks/readme_picture.py docs/pictures/forecast.png
"""

import sys

import bayeslaw as bl

train, test = bl.example_table().split(train="scale <= 3e20", test="scale >= 1e21")
figure = bl.fit("chinchilla", train).plot.forecast(test)
figure.savefig(sys.argv[1], dpi=110, bbox_inches="tight")
