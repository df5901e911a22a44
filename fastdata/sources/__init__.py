"""Sources of encoded images and their targets: the kinds of datasets that the image pipeline understands."""
