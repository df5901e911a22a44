"""Random augmentations: what is drawn for each sample, and the operations that carry it out.

A new augmentation is a class in `color.py` (or another file) that draws parameters and turns them into effects, and its
name in `fastdata/transforms/augmentations.py`.  A new kind of effect is also arithmetic for whole batches in `ops.py`,
chosen in `batch_effects.py`, and for single images in the native core.
"""
