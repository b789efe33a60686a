"""What the data can and cannot say: `check` and the parts it looks at."""
