"""Images and tensors that stay encoded in the user's own code, and are decoded together, natively, a batch at a time.

How one sample travels, if its dataset's code is the user's (dataloader/routes.py decides that, by rule):

1. Before a batch is made, `find.py` searches the dataset, and what its code names, for transforms that are known, and
   `places.py` puts a fused transform in the place of each (`fused_transform.py`): in a worker process for good, in the
   training process only while a batch is made.
2. `fetch.py` makes the samples of the batch, as torch's fetcher does: the user's `__getitem__` runs where torch would
   run it, with the same worker information, seeds and generators.  `sample_context.py` knows, for this thread, which
   sample is being made and what has become of its images.
3. When the user's code calls `PIL.Image.open`, `opening.py` gives it an image that remembers its file
   (`encoded_source.py`) and what was asked of it: crop, resize, flip, convert (`encoded_image.py`).  Everything else
   about it is Pillow's; code that needs its pixels gets them, decoded immediately.
4. The fused transform draws its view by (seed, epoch, sample), and does to the image what its compiled plan says
   (`fused_steps.py`).  If a tensor is wanted of an image that is still encoded, it gives a pending tensor, which knows
   its shape and dtype and has no memory (`pending_tensor.py`).  Steps of the user's own get real images and tensors.
5. Pending tensors are stacked and sent to the training process as the descriptions that they are; no pixels cross a
   process border.
6. There `complete.py` decodes the whole batch into its memory, in decode threads, by one call of the native core
   (`fill.py`), while the next batches are on their way.

Fallbacks: an image that cannot stay encoded (another format, a mode, a file without a path) is opened by Pillow.
Any use of a pending tensor other than its shape, arithmetic with constants and stacking decodes it.  If an image in a
batch cannot be decoded, or its file has changed, the batch is made again by the process that made it, from the same
random states, with nothing left encoded: so the user's own `try` meets the error.
"""
