"""Anchors bought, refitted and scored many times over, on worlds and on measured pools."""
