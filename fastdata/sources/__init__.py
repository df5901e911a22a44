"""Where encoded images and their targets come from: the kinds of datasets that the image pipeline understands."""
