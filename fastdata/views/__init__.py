"""Views: the plan of each image's steps, the views drawn from it, the random generator, and image headers."""
