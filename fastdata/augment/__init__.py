"""Random augmentations: what is drawn for each sample, and the operations that carry it out.

A new augmentation is a class in `color.py` (or another file), its arithmetic in `ops.py`, and its name in
`fastdata/transforms/augmentations.py`.
"""
