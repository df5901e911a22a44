"""Which part of an image is seen: the plan, the views drawn from it, the numbers they are drawn from, image headers."""
