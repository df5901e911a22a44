"""Functions and classes of other libraries that fastdata replaces, and their private names that it relies on.

`replacements.py` puts replacements in place and takes them back.  One file each says what is replaced:
`image_opening.py` (Pillow, torchvision, torch's collate map), `worker_process.py` (torch's fetchers, multiprocessing's
queues, the excepthook).  `accelerate.py` is about one name of accelerate, and `torch_internals.py` lists the private
names of torch's iterators that fastdata overrides.  `fastdata run`, which starts programs with another DataLoader, is
in `run/`.  The guide has a table of all of it, for users.
"""
